"""A model behind an address: the API (`api.py`), what protects it (`protection.py`), and the page on top (`page.py`).

    request ─► protection ─► bodies: files, base64 or features, within limits ─► decoded by a few threads
        ─► batches: concurrent requests share a forward pass ─► an engine, torch or ONNX ─► JSON as `predict --json`

FastAPI is imported by `app.py` and below it, never by the rest of the package.
"""
