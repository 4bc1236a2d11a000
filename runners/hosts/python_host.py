"""The warm child for Python handlers: reads frames on descriptor 3, answers on 4, ends with them.

The frames are described in `runners/wire.py`. Runs as `python -I -S -B`, imports nothing of ours
and hardly more than an interpreter has loaded anyway (`_json` and `_ast` instead of `json` and
`ast`, which would double the start-up time). It enforces nothing against hostile code: a handler
shares this process and can spoil its own tenant's batches only; limits are the daemon's business.
"""

from __future__ import annotations

import io
import os
import sys
from _ast import Assign, AsyncFunctionDef, FunctionDef, Name, PyCF_ONLY_AST
from _json import encode_basestring_ascii, make_encoder, make_scanner
from time import monotonic, process_time, time

TYPE_CHECKING = False  # what type checkers take for true; importing typing costs milliseconds
if TYPE_CHECKING:
    from typing import Any

PARTS = ("before", "body", "beforeEach", "afterEach")
# The scanner of Python 3.11 raises SystemError where it would need the json package for a message.
NOT_JSON = (StopIteration, ValueError, RecursionError, SystemError)
FRAMES_IN, FRAMES_OUT = 3, 4


class Retry(Exception):
    """Raised by a handler: try this job again, after `delay` seconds if given."""

    def __init__(self, delay: float | None = None, value: object = None) -> None:
        super().__init__(delay)
        if delay is not None and not 0 <= delay <= 1e9:
            raise ValueError(f"Retry(delay={delay!r}) is no number of seconds")
        self.delay, self.value = None if delay is None else float(delay), value


class Failed(Exception):
    """Raised by a handler: this job has failed for good, with `value` as its result."""

    def __init__(self, value: object = None) -> None:
        super().__init__(value)
        self.value = value


class Log(io.TextIOBase):
    """Stands in for stdout and stderr: keeps the first bytes of a batch, counts the others."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.room = self.dropped = 0

    def begin(self, room: int) -> None:
        self.kept.clear()
        self.room, self.dropped = room, 0

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        self.kept += data[: self.room]
        self.dropped += max(0, len(data) - self.room)
        self.room = max(0, self.room - len(data))
        return len(text)

    def take(self) -> bytes:
        kept = bytes(self.kept)
        self.kept.clear()
        return kept


class JsonGrammar:
    """How the scanner reads payloads: as strict JSON, in which there is no NaN."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int

    @staticmethod
    def parse_constant(name: str) -> None:
        raise ValueError(name)


def no_json(value: object) -> None:
    raise TypeError(f"a result of type {type(value).__name__} is not JSON")


# Made once and called directly, because json.loads and json.dumps cost more than most handlers.
scan: Any = make_scanner(JsonGrammar)  # type: ignore[arg-type]
encode: Any = make_encoder(
    None, no_json, encode_basestring_ascii, None, ": ", ", ", False, False, False
)
join = "".join
log = Log()


class Context:
    """What a handler gets as `context`: one object per batch, its answers computed on demand."""

    def __init__(self, request: dict[str, Any], lines: list[str]) -> None:
        self.attempt: int = request["attempt"]
        self._spans, self._timeout_s = request["spans"], request["timeout_s"]
        self._lines = lines
        self._out: list[str] = []  # results not reported yet
        self._bad: list[list[Any]] = []  # [index, exitcode, delay], not reported yet
        self._reported = 0
        self._reported_at = monotonic()

    @property
    def _index(self) -> int:
        return self._reported + len(self._out)

    @property
    def id(self) -> str:
        """The job's id, which is the same at every attempt."""
        index = self._index
        for post, first, count in self._spans:
            if index < count:
                return f"{post}-{first + index}"
            index -= count
        raise LookupError("no job is running")

    @property
    def raw(self) -> bytes:
        """The payload as the very bytes that were posted."""
        return self._lines[self._index].encode("utf-8", "surrogateescape")

    @property
    def deadline(self) -> float:
        """When this job must have ended, in seconds since the epoch."""
        return time() - monotonic() + self._reported_at + float(self._timeout_s)

    def log(self, text: object) -> None:
        log.write(f"{text}\n")

    def _report(self, **end: object) -> None:
        block = "\n".join([*self._out, ""]).encode()
        logged = log.take()
        header = {
            "op": "end" if end else "part",
            "done": self._index,
            "bad": self._bad,
            "out": len(block),
            "log": len(logged),
            "jobs": 0,
        }
        send(header | end, block, logged)
        self._reported, self._reported_at = self._index, monotonic()
        self._out.clear()
        self._bad.clear()


class Handler:
    """A loaded definition: a module of its own, and the code to run around each batch."""

    def __init__(self, slot: str, code: dict[str, Any]) -> None:
        # Being in sys.modules makes dataclasses, pickling and the like work in tenants' code.
        module = sys.modules[slot] = type(sys)(slot)
        self.names = vars(module)
        self.names.update(Retry=Retry, Failed=Failed)
        self.code = code
        self.execute("before")
        self.execute("body")
        self.handle = self.names["handler"]

    def execute(self, part: str) -> None:
        if self.code[part]:
            exec(self.code[part], self.names)  # noqa: S102

    def begin(self) -> Any:
        """Run beforeEach; if it raises, that is the answer of every job of the batch."""
        try:
            self.execute("beforeEach")
        except BaseException as error:
            problem = error

            def fail(payload: object, context: Context) -> None:
                raise problem

            return fail
        return self.handle

    def finish(self, context: Context) -> None:
        """Run afterEach, which can no longer change what the jobs have answered."""
        if context._out and self.code["afterEach"]:
            context._report()
        try:
            self.execute("afterEach")
        except BaseException as error:
            log.write(f"afterEach: {describe(error)}\n")
        if log.dropped:
            log.room = 80
            log.write(f"\n[{log.dropped} more bytes were printed]\n")


def main() -> None:
    os.chdir("/")
    sys.stdout = sys.stderr = log
    handlers: dict[str, Handler] = {}
    with open(FRAMES_IN, "rb") as frames:
        while header := frames.readline():
            request: dict[str, Any] = scan(header.decode(), 0)[0]
            if request["op"] == "run":
                run(handlers[request["slot"]], request, frames.read(request["bytes"]))
            else:
                send(prepare(request, handlers))
    os._exit(0)  # tenants' atexit hooks and threads have no say in it


def send(header: dict[str, Any], *blocks: bytes) -> None:
    rest = memoryview(b"".join((join(encode(header, 0)).encode(), b"\n", *blocks)))
    while rest:
        rest = rest[os.write(FRAMES_OUT, rest) :]


def prepare(request: dict[str, Any], handlers: dict[str, Handler]) -> dict[str, Any]:
    """Do a `load` or a `check`, which stops short of running anything; return the answer."""
    part = ""
    started, cpu_started = monotonic(), process_time()
    log.begin(0)
    try:
        code = {}
        for part in PARTS:
            code[part] = compile_part(part, request[part]) if request[part] else None
        part = "body"
        if request["op"] == "load":
            handlers[request["slot"]] = Handler(request["slot"], code)
    except SyntaxError as error:
        return refused(error.filename or part, error.lineno or 0, f"SyntaxError: {error.msg}")
    except BaseException as error:
        places = trace(error) or [(part, 0, "")]
        return refused(*places[-1][:2], describe(error))
    times = {"run_s": monotonic() - started, "cpu_s": process_time() - cpu_started}
    return {"op": "ready"} | times


def refused(part: str, line: int, message: str) -> dict[str, Any]:
    return {"op": "refused", "message": f"{part}: {message}"[:2000], "line": line}


def compile_part(part: str, source: str) -> Any:
    """Compile one part; a body that defines no `handler` becomes the body of that function."""
    tree: Any = compile(source, part, "exec", PyCF_ONLY_AST, dont_inherit=True)
    if part == "body" and not any(map(defines_handler, tree.body)):
        # Grafting the statements keeps line numbers and strings, which indenting would change.
        shell = "def handler(payload, context): pass"
        graft: Any = compile(shell, part, "exec", PyCF_ONLY_AST, dont_inherit=True)
        graft.body[0].body = tree.body or graft.body[0].body
        tree = graft
    return compile(tree, part, "exec", dont_inherit=True)


def defines_handler(node: Any) -> bool:
    if isinstance(node, AsyncFunctionDef) and node.name == "handler":
        raise SyntaxError("an async handler is not supported", ("body", node.lineno, 0, ""))
    if isinstance(node, Assign):
        return any(isinstance(target, Name) and target.id == "handler" for target in node.targets)
    return isinstance(node, FunctionDef) and node.name == "handler"


def run(loaded: Handler, request: dict[str, Any], data: bytes) -> None:
    """Run one batch: the loop that everything else exists for."""
    started, cpu_started = monotonic(), process_time()
    log.begin(request["log_max"])
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    lines.pop()
    context = Context(request, lines)
    out, bad, stop = context._out, context._bad, None
    budget_at = started + request["budget_s"]
    pause = 0.0 if request["careful"] else request["flush_s"]
    flush_at = min(started + pause, budget_at)
    result_max = request["result_max"]
    # Stopping while one more result of the largest size would fit keeps the batch in its limit.
    size, size_max = len(lines), request["out_max"] - result_max
    handle = loaded.begin()
    for line in lines:
        try:
            payload, end = scan(line, 0)
            if end != len(line):
                payload = decode(line)
        except NOT_JSON:
            payload = decode(line)
        try:
            result = join(encode(handle(payload, context), 0))
            if len(result) > result_max:
                raise ValueError(f"result over {result_max // 1_000_000} MB")
        except BaseException as error:
            exitcode, delay, result = verdict(error, result_max)
            bad.append([context._index, exitcode, delay])
        out.append(result)
        size += len(result)
        if monotonic() >= flush_at or size > size_max:
            if context._index == len(lines):
                break
            if size > size_max or monotonic() >= budget_at:
                stop = "output" if size > size_max else "budget"
                break
            context._report()
            flush_at = min(monotonic() + pause, budget_at)
    loaded.finish(context)
    run_s, cpu_s = monotonic() - started, process_time() - cpu_started
    context._report(run_s=run_s, cpu_s=cpu_s, stop=stop)


def decode(line: str) -> Any:
    """The slower way into a payload: JSON with white space around it, else the line as a str.

    Bytes that are not UTF-8 are lone surrogates in it (`surrogateescape`): nothing is lost.
    """
    bare = line.strip(" \t\r")
    try:
        payload, end = scan(bare, 0)
    except NOT_JSON:
        return line
    return payload if end == len(bare) else line


def verdict(error: BaseException, result_max: int) -> tuple[int, float | None, str]:
    """What an exception means for its job: exitcode, delay, result."""
    try:
        if isinstance(error, (Retry, Failed)):
            result = join(encode(error.value, 0))
            if len(result) > result_max:
                raise ValueError(f"result over {result_max // 1_000_000} MB")
            return (100, error.delay, result) if isinstance(error, Retry) else (400, None, result)
    except BaseException as broken:
        error = broken
    places = "\n".join(f"{part}:{line} in {name}" for part, line, name in trace(error))
    return 500, None, join(encode({"error": describe(error), "trace": places}, 0))


def describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:2000]
    except BaseException:
        return f"{type(error).__name__}: (its message cannot be printed)"


def trace(error: BaseException) -> list[tuple[str, int, str]]:
    """Where in the tenant's code an error came up: (part, line, function), innermost last."""
    places = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if code.co_filename != __file__:
            places.append((code.co_filename[-200:], step.tb_lineno, code.co_name[:200]))
        step = step.tb_next
    return places[-8:]


if __name__ == "__main__":
    main()
