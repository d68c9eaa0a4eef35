"""A server under load: throughput against ``predict``, latency, a full queue, and a long soak.

    python benchmarks/serving.py [--clients 200] [--seconds 60] [--soak 600] [--cores 1]

The server is a process of its own on some of the cores, and ``predict`` is measured on the same
ones; the clients have the others, so that they take no time away. With one core they share it. The
soak is left out unless it is asked for: its memory is sampled all the time and must stay flat.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from common import HERE, Result, finish, one_thread, photographs

SIZE, CLASSES, FILES = 64, 8, 64
ROUND = 10.0  # seconds of each row of the table
WARM = 64  # images before a measurement


@dataclass
class Load:
    """What clients saw: seconds of every answered request, refusals, failures, and memory."""

    elapsed: float = 0.0
    taken: list[float] = field(default_factory=list)
    busy: int = 0
    silent: int = 0  # refusals that do not say when to come back
    failed: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)  # MB, one sample a second
    cpu: float = 0.0  # seconds of processor time of the server

    @property
    def rate(self) -> float:
        """Images a second."""
        return len(self.taken) / self.elapsed

    def row(self, clients: int) -> str:
        """A line of the table."""
        at = [1000 * x for x in np.percentile(self.taken or [0.0], [50, 90, 99, 100])]
        numbers = "".join(f"{x:9.0f}" for x in at)
        return f"  {clients:7d}{len(self.taken):10d}{self.rate:10.1f}{numbers}"


def write_model(folder: Path, backbone: str) -> None:
    from lmd.model import build_model
    from lmd.model.files import ModelSpec, save_model

    model, pre = build_model(backbone, "none", CLASSES, image_size=SIZE, seed=0)
    names = tuple(f"class {k}" for k in range(CLASSES))
    width = model.classifier.in_features
    spec = ModelSpec(names, backbone, "linear", width, pre, "none", (1,) * CLASSES)
    save_model(model, folder, spec)


def request(host: str, image: bytes) -> bytes:
    """The bytes of one POST."""
    part = 'Content-Disposition: form-data; name="image"; filename="a.jpg"'
    body = f"--x\r\n{part}\r\nContent-Type: image/jpeg\r\n\r\n".encode() + image + b"\r\n--x--\r\n"
    head = f"POST /api/models/model/predict HTTP/1.1\r\nHost: {host}\r\n"
    head += f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of one answer, which is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().splitlines()
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
    await reader.readexactly(int(headers["content-length"]))
    return int(first.split()[1]), headers


async def load_test(
    address: str, images: list[bytes], clients: int, seconds: float, process: int
) -> Load:
    """``clients`` send images one after the other, on plain sockets, for so many ``seconds``.

    Clients with a pool of connections would need more time than the server.
    """
    host = address.split("/")[2]
    name, port = host.split(":")
    ready = [request(host, each) for each in images]
    found, start = Load(), time.perf_counter()

    async def client(first: int) -> None:
        number, writer = first, None
        while time.perf_counter() - start < seconds:
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection(name, int(port))
                begun = time.perf_counter()
                writer.write(ready[number % len(ready)])
                status, headers = await answer(reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                found.failed[type(error).__name__] += 1
                writer = None
                continue
            if status == 503:
                found.busy += 1
                found.silent += "retry-after" not in headers
                await asyncio.sleep(min(float(headers.get("retry-after", 1)), seconds))
            elif status == 200:
                found.taken.append(time.perf_counter() - begun)
                number += 1
            else:
                found.failed[str(status)] += 1
        if writer is not None:
            writer.close()

    async def watch() -> None:
        statm = Path(f"/proc/{process}/statm")
        while statm.exists():
            pages = int(statm.read_text().split()[1])
            found.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(client(i) for i in range(clients)))
    found.elapsed = time.perf_counter() - start
    watching.cancel()
    return found


@contextlib.contextmanager
def serving(folder: Path, cores: set[int], *options: str) -> Iterator[tuple[str, int]]:
    """A server on these cores: its address and its process."""
    command = [sys.executable, "-m", "lmd", "serve", str(folder), "--port", "0", *options]
    with on(cores):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(line for line in server.stdout if "page:" in line).split()[-1]
        yield address, server.pid
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def on(cores: set[int]) -> Iterator[None]:
    """Keep this thread, and processes that it starts, on these cores, where the system can."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def split(wanted: int) -> tuple[set[int], set[int]]:
    """Cores of the server and of the clients; the same if there is only one."""
    if not hasattr(os, "sched_getaffinity"):
        return set(), set()
    there = sorted(os.sched_getaffinity(0))
    first = max(min(wanted or len(there) // 2, len(there) - 1), 1)
    return set(there[:first]), set(there[first:]) or set(there)


def cpu_seconds(process: int) -> float:
    """Processor time of a process so far, of all its threads."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return 0.0
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def predicted(folder: Path, seconds: float) -> tuple[float, float]:
    """Images a second of ``predict`` with the engine of the server, and ms of processor time each.

    In a process of its own.
    """
    from lmd.export.export import TracedEngine
    from lmd.predict.predictor import load

    predictor = load(folder)
    predictor.faster = TracedEngine(predictor.engine)  # type: ignore[arg-type]
    paths = sorted(folder.glob("*.jpg"))
    predictor.predict(paths[:WARM])
    done, start, used = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - start) < seconds:
        predictor.predict(4 * paths)
        done += 4 * len(paths)
    return done / elapsed, 1000 * (time.process_time() - used) / done


def alone(folder: Path, cores: set[int], seconds: float) -> tuple[float, float]:
    command = [sys.executable, str(HERE / "serving.py"), "--predict", str(folder)]
    command += ["--seconds", str(seconds)]
    with on(cores):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rate, cost = json.loads(done.stdout.splitlines()[-1])
    return rate, cost


@dataclass
class Measured:
    """All that was measured; ``rate`` and ``cost`` are of ``predict``: images/s and ms each."""

    rate: float
    cost: float
    rows: dict[int, Load]  # by the number of clients, the last is the full load
    crowd: Load  # the same clients with a queue of 32
    soak: Load | None


def measure(options: argparse.Namespace, own: set[int], others: set[int]) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        folder.mkdir()
        write_model(folder, options.backbone)
        images = [path.read_bytes() for path in photographs(folder, FILES)]
        short, most = min(options.seconds, ROUND), options.clients

        def test(address: str, process: int, clients: int, seconds: float) -> Load:
            used = cpu_seconds(process)
            with on(others):
                found = asyncio.run(load_test(address, images, clients, seconds, process))
            found.cpu = cpu_seconds(process) - used
            return found

        before = alone(folder, own, short)
        with serving(folder, own) as server:
            test(*server, 8, 1)
            rows = {n: test(*server, n, short) for n in sorted({1, 8, 32} - {most})}
            rows[most] = test(*server, most, options.seconds)
            soak = test(*server, most, options.soak) if options.soak else None
        with serving(folder, own, "--queue", "32") as server:
            crowd = test(*server, most, short)
        after = alone(folder, own, short)
    rate, cost = ((a + b) / 2 for a, b in zip(before, after, strict=True))
    return Measured(rate, cost, rows, crowd, soak)


def report(found: Measured, clients: int) -> list[Result]:
    """Print the tables; returns what has a target."""
    full, crowd = found.rows[clients], found.crowd
    served = 1000 * full.cpu / max(len(full.taken), 1)
    print(f"  predict on the cores of the server: {found.rate:.1f} images/s")
    print(f"  processor time of an image: {found.cost:.2f} ms with predict, {served:.2f} ms served")
    print("  clients    images  images/s   ms: 50 %     90 %     99 %     most")
    for number, load in found.rows.items():
        print(load.row(number))
    print(
        f"  a queue of 32 images, {clients} clients: {len(crowd.taken)} answered, "
        f"{crowd.busy} times 503, {crowd.silent} of them without Retry-After"
    )
    results = [
        Result("serving: throughput over that of predict", full.rate / found.rate, 0.8, True),
        Result("serving: 503 without Retry-After", crowd.silent, 0, False),
    ]
    if clients > 32:
        results.append(Result("serving: a full queue answers 503", crowd.busy, 1, True))
    failed = sum((load.failed for load in (*found.rows.values(), crowd)), Counter())
    if found.soak is not None:
        failed += found.soak.failed
        results.append(flat(found.soak))
    if failed:
        print(f"  failed: {dict(failed)}")
    return [*results, Result("serving: failed requests", sum(failed.values()), 0, False)]


def flat(soak: Load) -> Result:
    """Memory at the end over that after a fifth of the time, medians of a tenth each."""
    tenth = max(len(soak.memory) // 10, 1)
    first, last = median(soak.memory[2 * tenth : 3 * tenth]), median(soak.memory[-tenth:])
    print(
        f"  soak of {soak.elapsed:.0f} s: {len(soak.taken)} images at {soak.rate:.1f} images/s; "
        f"memory {first:.1f} MB after a fifth, {last:.1f} MB at the end, at most "
        f"{max(soak.memory):.1f} MB"
    )
    return Result(
        "serving: memory at the end of the soak over its beginning", last / first, 1.03, False
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--soak", type=float, default=0, help="seconds; 0: none")
    parser.add_argument("--cores", type=int, default=0, help="of the server; 0: half of them")
    parser.add_argument("--predict", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json")
    options = parser.parse_args()
    one_thread()
    if options.predict:
        print(json.dumps(predicted(options.predict, options.seconds)))
        sys.exit(0)
    server, others = split(options.cores)
    where = f"{len(server)} cores for the server, {len(others)} for the clients"
    print(f"{options.backbone}, JPEG files of 600 x 450 px; {where}", flush=True)
    found = measure(options, server, others)
    sys.exit(finish(report(found, options.clients), options.json))
