"""The trace process: answers "what does one rank of this candidate need under this layout?", one JSON line for each.

``python -m workloads.sandbox.server`` reads requests on stdin and answers on stdout. It imports torch once and runs
none of a user's code itself: every request is served by a fork with a deadline and a memory limit, whose output goes
nowhere, so that a model which hangs, crashes or prints spoils its own answer only. It caches nothing;
``scamp_service`` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from estimators.model import Layout
from estimators.tracing.session import Recipe
from estimators.tracing.tracer import examples, trace, trace_peak
from workloads.archive import ArchiveError, unpack_code
from workloads.loading import BUILT_INS, WorkloadError, load_estimable, load_workload
from workloads.models.transformer import Block
from workloads.parallel.apply import apply_plan, spread_optimizer
from workloads.parallel.spatial import slab
from workloads.parallel.tensor_parallel import Split
from workloads.protocol import Workload
from workloads.training.step import train_step

MEMORY_BYTES = 8 * 2**30  # of real memory: data sets, mostly; the model itself takes none
WALL_FACTOR = 4  # of wall-clock time for one second of processor time
OUTPUT_BYTES = 2000  # of what the workload printed, kept for the case that its process dies
TRACEBACK_BYTES = 4000
_PR_SET_PDEATHSIG = 1
_STEPS = 1000  # what ``on_step`` is told; the steps of the study are no part of the structure


def main() -> None:
    """Serve until stdin ends."""
    _die_with_parent()
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    warm_up()
    _write(answers, {"ready": True})
    for line in requests:
        request = json.loads(line)
        if request["workload"] in BUILT_INS:
            load_workload(request["workload"], None)  # imported once, not in every fork
        _write(answers, {"id": request["id"], **_in_fork(request, (requests, answers))})


def profile(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a request in this process: with what was asked for, or an error, of kind params or workload.

    ``ask`` is one of

    - load: only load the workload, as ranks do; the answer is empty;
    - trace: the ``layout`` of a candidate of ``params``; ``equal_blocks`` is that of
      another layout's answer, if any;
    - candidates: of each of a list of ``params`` its batch, or what the workload has against them;
    - examples: for blueprints (``estimators.scaling.blueprint``), two, of ``params``, ``layout`` and ``micro_batch``;
    - peak: bytes of the same, traced whole.

    ``on_cuda`` asks for what it does on CUDA. User files come as a zip, ``code_zip``, and the folder to unpack it into,
    ``code_dir``; both are null for a built-in workload. Parameters that the workload refuses (``ValueError`` in its
    constructor) are ``params``: the candidate makes no sense. Whatever else goes wrong is the ``workload``'s fault.
    """
    code_dir = Path(request["code_dir"]) if request["code_dir"] else None
    try:
        if code_dir is not None:
            unpack_code(Path(request["code_zip"]).read_bytes(), code_dir)
        return _ASKED[request["ask"]](request, code_dir)
    except _RefusedParams as error:
        return _error("params", str(error))
    except (ArchiveError, WorkloadError) as error:
        return _error("workload", str(error))
    except BaseException as error:  # also SystemExit and KeyboardInterrupt that a user's code raises
        return _error("workload", _explain(error), _user_frames(error, code_dir))


class _RefusedParams(Exception):
    pass


def _load(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    load_workload(request["workload"], code_dir)
    return {}


def _trace(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    workload, batch = _candidate(load_estimable(request["workload"], code_dir), request["params"])
    recipe, layout = recipe_of(workload, request["on_cuda"]), Layout.from_json(request["layout"])
    return trace(recipe, layout, batch, request["equal_blocks"]).to_json()


def _candidates(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    make = load_estimable(request["workload"], code_dir)

    def checked(params: Mapping[str, Any]) -> int | str:
        try:
            return _candidate(make, params)[1]
        except _RefusedParams as error:
            return str(error)

    return {"candidates": [checked(params) for params in request["params"]]}


def _examples(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    return {"examples": [one.to_json() for one in examples(*_wish(request, code_dir))]}


def _peak(request: Mapping[str, Any], code_dir: Path | None) -> dict[str, Any]:
    return {"peak": trace_peak(*_wish(request, code_dir)).fixed_bytes}


def _wish(request: Mapping[str, Any], code_dir: Path | None) -> tuple[Recipe, Layout, int]:
    workload, _ = _candidate(load_estimable(request["workload"], code_dir), request["params"])
    return recipe_of(workload, request["on_cuda"]), Layout.from_json(request["layout"]), request["micro_batch"]


_ASKED = {"load": _load, "trace": _trace, "candidates": _candidates, "examples": _examples, "peak": _peak}


def _candidate(make: Callable[[dict[str, Any]], Workload], params: Mapping[str, Any]) -> tuple[Workload, int]:
    """With its batch."""
    try:
        workload = make(dict(params))
    except ValueError as error:
        raise _RefusedParams(str(error) or "the workload refuses these parameters") from None
    batch = params.get("batch", workload.default_batch)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise _RefusedParams(f"batch must be a positive whole number, got {batch!r}")
    return workload, batch


def _error(kind: str, message: str, frames: str = "") -> dict[str, Any]:
    return {"error": message, "kind": kind, "traceback": frames}


def recipe_of(workload: Workload, on_cuda: bool = False) -> Recipe:
    return Recipe(
        build_model=workload.build_model,
        make_batch=lambda size: workload.train_batch(torch.arange(size) % workload.num_train),
        blocks=workload.blocks,
        apply_plan=apply_plan,
        optimizer=lambda model, layout, mesh: spread_optimizer(workload.optimizer(model), layout, mesh),
        begin_step=lambda step, optimizer: workload.on_step(step, _STEPS, optimizer),
        train_step=lambda model, optimizer, batches, num: train_step(workload, model, optimizer, batches, num),
        most_parts=_most_parts,
        slab=lambda model, batch, layout: slab(model, batch, 0, layout.spatial) if layout.spatial > 1 else batch,
        on_cuda=on_cuda,
    )


def _most_parts(block: torch.nn.Module) -> int:
    split = getattr(block, "split", None)
    return split.most_parts if isinstance(split, Split) else 1


def _explain(error: BaseException) -> str:
    """One line; in the words of someone who wrote a model, not a tracer."""
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return (
            "the training step depends on the values of tensors, as by .item(), float(tensor), tensor.nonzero() or an "
            f"if on a tensor, so its memory cannot be told before it runs ({error.func}); keep values in tensors"
        )
    if isinstance(error, MemoryError):
        return f"the workload needs more than {MEMORY_BYTES >> 30} GiB of memory before any training"
    return traceback.format_exception_only(error)[-1].strip()


def _user_frames(error: BaseException, code_dir: Path | None) -> str:
    """The traceback without the frames of torch and of ours, unless only these are left."""
    frames = traceback.extract_tb(error.__traceback__)
    home = code_dir.resolve() if code_dir is not None else Path(__file__).parent.parent
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(home) and frame.filename != __file__]
    return "".join(traceback.format_list(own or list(frames)))[-TRACEBACK_BYTES:]


def warm_up() -> None:
    """Trace a small model, so that forks find torch's lazy imports done."""
    torch.set_num_threads(1)
    trace(recipe_of(_WarmUp({})), Layout(), 4)
    gc.collect()
    gc.freeze()  # collections in forks would copy the pages of all these objects


class _WarmUp(Workload):
    num_train = num_eval = 8

    def build_model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.ModuleList([Block(8, 2, 4.0, 0.1, 1.0, causal=True)])[0])

    def train_batch(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(indices), 4, 8)

    eval_batch = train_batch

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch).flatten(1), torch.zeros(len(batch), dtype=torch.long))

    def evaluate(self, model: torch.nn.Module, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def blocks(self, model: torch.nn.Module) -> list[torch.nn.Module]:
        return list(model.children())


# --- one fork for each request --------------------------------------------------------------------------------------


def _in_fork(request: Mapping[str, Any], protocol: tuple[IO[bytes], IO[bytes]]) -> dict[str, Any]:
    result_read, result_write = os.pipe()
    output_read, output_write = os.pipe()
    child = os.fork()
    if child == 0:
        _serve_fork(request, protocol, result_write, output_write)
    os.setpgid(child, child)
    os.close(result_write)
    os.close(output_write)
    wall_seconds = WALL_FACTOR * request["seconds"]
    answer, output = _collect(result_read, output_read, time.monotonic() + wall_seconds)
    ended = None if answer else _exit_of(child)
    _end_group(child)
    os.close(result_read)
    os.close(output_read)
    if answer:
        result: dict[str, Any] = json.loads(answer)
        return result
    tail = output.decode(errors="replace")
    if ended is None:
        return _error("workload", f"tracing one step took longer than {wall_seconds:g} s, and was ended", tail)
    if ended.si_status == signal.SIGXCPU:
        return _error("workload", f"tracing one step took more than {request['seconds']} s of processor time", tail)
    how = f"signal {signal.Signals(ended.si_status).name}" if ended.si_code != os.CLD_EXITED else "os._exit or the like"
    return _error("workload", f"the workload ended the process that traced it (by {how})", tail)


def _serve_fork(
    request: Mapping[str, Any], protocol: tuple[IO[bytes], IO[bytes]], result_write: int, output_write: int
) -> None:
    """Never returns. What a user's code forks in turn stays in this process's group, and ends with it."""
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        for stream in protocol:
            os.close(stream.fileno())
        os.dup2(output_write, 1)
        os.dup2(output_write, 2)
        _limit(request["seconds"])
        own = os.getpid()
        answer = profile(request)
        if os.getpid() == own:  # else a fork that a user's code made and let run on
            os.write(result_write, json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def _collect(result: int, output: int, deadline: float) -> tuple[bytes, bytes]:
    """The result's line, empty if none came in time or the process ended; and the end of what was printed."""
    line, tail, open_pipes = b"", b"", [result, output]
    while result in open_pipes and not line.endswith(b"\n"):
        ready, _, _ = select.select(open_pipes, [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            data = os.read(pipe, 65536)
            if not data:
                open_pipes.remove(pipe)
            elif pipe == result:
                line += data
            else:
                tail = (tail + data)[-OUTPUT_BYTES:]
    return (line if line.endswith(b"\n") else b""), tail


def _exit_of(child: int) -> os.waitid_result | None:
    """How the process ended; None if it runs on. Its pipes close a moment before it is gone."""
    for _ in range(20):
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is not None:
            return ended
        time.sleep(0.05)
    return None


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    os.waitpid(leader, 0)


def _limit(seconds: int) -> None:
    """Of processor time, not to fail a candidate because the machine is busy."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # SIGXCPU, then SIGKILL
    match = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    held = int(match[1]) * 1024 if match else 0
    resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY_BYTES, held + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _write(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


if __name__ == "__main__":
    main()
