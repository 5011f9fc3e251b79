"""What Prometheus reads at /metrics: load, speed, and what is being answered, so that drift is visible."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bayescal.estimator.answers import Answer

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)


class Metrics:
    """Counters of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = {"registry": self.registry, "namespace": "bayescal"}
        self.requests = Counter("requests", "Requests, by route and status", ("route", "status"), **own)
        # There from the start, so that the first one is an increase; a series of its own route would begin at 1.
        self.failures = Counter("failures", "Requests that failed in the server (500)", **own)
        self.seconds = Histogram("request_seconds", "Time to the whole answer", ("route",), buckets=SECONDS, **own)
        self.batch = Histogram("batch_rows", "Images or rows of features in a forward pass", buckets=ROWS, **own)
        self.waiting = Gauge("waiting_images", "Images that were let in and are not answered", **own)
        self.answered = Counter("answers", "Answers, by status: ok or unreadable", ("status",), **own)
        self.unsure = Counter("unsure_answers", "Answers below the confidence set in training", **own)
        self.unfamiliar = Counter("unfamiliar_answers", "Images unlike all that was learned from", **own)
        self.classes = Counter("predicted_classes", "Answers, by class", ("label",), **own)
        self.confidence = Histogram(
            "confidence", "Probability of the answer", buckets=[i / 10 for i in range(1, 11)], **own
        )
        for status in ("ok", "unreadable"):
            self.answered.labels(status)

    def answers(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self.answered.labels("ok" if answer.ok else "unreadable").inc()
            if answer.ok:
                self.unsure.inc(answer.unsure)
                self.unfamiliar.inc(answer.unfamiliar)
                self.classes.labels(str(answer.label)).inc()
                self.confidence.observe(answer.confidence)

    def pass_of(self, rows: int) -> None:
        self.batch.observe(rows)

    def request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        self.failures.inc(status == 500)

    def text(self) -> bytes:
        return generate_latest(self.registry)
