# Everything: fit, evaluate, export, bench. From the root of the repository:
#   docker build -f deploy/train.Dockerfile -t bayescal .
#   docker run --rm -v "$PWD:/work" -v bayescal-cache:/cache bayescal fit photos -o model
#   docker run --rm -v "$PWD:/work" -v bayescal-cache:/cache bayescal export model -o exported
# With a GPU: docker run --gpus all … --device cuda
FROM python:3.12-slim
WORKDIR /build
COPY requirements.lock pyproject.toml README.md LICENSE NOTICE ./
COPY LICENSES ./LICENSES
COPY src ./src
RUN pip install --no-cache-dir --constraint requirements.lock ".[export,heic,serve,xlsx]" \
    && mkdir /cache /work && chown 10001:10001 /cache /work
ENV PYTHONUNBUFFERED=1 BAYESCAL_CACHE=/cache HOME=/tmp
USER 10001:10001
WORKDIR /work
VOLUME /cache
ENTRYPOINT ["bayescal"]
CMD ["--help"]
