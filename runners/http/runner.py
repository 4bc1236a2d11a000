"""The runner for handlers that are URLs: a batch is POSTed, the answer is its results.

Puts together what is sent, where to, and what is made of the answer. Follows no redirect, keeps no
cookie, and has no way around the guard.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Collection
from dataclasses import replace

import aiohttp
from yarl import URL

from handlers.definition import Definition, Handler
from handlers.urls import DENIED_PORTS, InvalidURL, Target, check_url
from runners.base import (
    Call,
    Outcome,
    SourceError,
    Stop,
    StopReason,
    nothing_done,
)
from runners.http.answers import BAD_ANSWER, REFUSED, Response, Results, all_bad, read
from runners.http.gate import Gate, Host
from runners.http.guard import Guard, Refused
from runners.http.links import Link, Links
from runners.http.lookups import Lookups, MakeResolver
from runners.http.requests import Request, headers_of, requests_of
from runners.http.settings import HttpSettings
from runners.http.signing import tenant_secret

LANG = "http"
_IDENTITY = ("", "identity")


class HttpRunner:
    """A `runners.base.Runner`; to be made, used and closed on one event loop.

    `wall` is the time for signatures, in seconds since 1970.
    """

    def __init__(
        self,
        settings: HttpSettings,
        wall: Callable[[], float],
        *,
        resolver: MakeResolver | None = None,
    ) -> None:
        self._settings = settings
        self._wall = wall
        self._clock = asyncio.get_running_loop().time
        self._lookups = Lookups()
        self._links = Links(settings, resolver or self._lookups.resolver)
        self._gate = Gate(
            total=settings.requests_max,
            per_tenant=settings.tenant_requests_max,
            per_host=settings.host_requests_max,
        )
        self._deadlines: set[asyncio.Timeout] = set()
        self._is_closed = False

    @property
    def langs(self) -> Collection[str]:
        return (LANG,)

    async def run(self, call: Call) -> Outcome:
        """As in the protocol. A request over its time stops the call; the others end in results."""
        definition = call.handler.definition
        try:
            guard = self._guard(definition)
        except InvalidURL as error:
            return nothing_done(StopReason.UNLOADABLE, str(error))
        host = (call.handler.tenant, guard.target.host, guard.target.port)
        if not await self._gate.enter(host):
            return nothing_done(StopReason.CLOSED, "the runner is closed")
        try:
            link = self._links.take(call.handler.tenant, guard.target, guard, self._clock())
            try:
                link.keys.add(call.handler.key)
                return await self._converse(call, guard.target, link)
            finally:
                self._links.give_back(link, self._clock())
        finally:
            self._gate.leave(host)

    async def check(self, definition: Definition) -> SourceError | None:
        """Whether the URL could be called. Names are not looked up: that is done at every dial."""
        try:
            guard = self._guard(definition)
            if guard.target.is_literal:
                guard.check(guard.target.host, guard.target.port)
        except InvalidURL as error:
            return SourceError(message=str(error), line=0)
        except Refused as error:
            return SourceError(message=error.strerror or str(error), line=0)
        return None

    def room(self, handler: Handler) -> int:
        return self._gate.room(_host_of(handler))

    def warm(self) -> Collection[tuple[str, str, str]]:
        return self._links.keys()

    def reap(self, now: float) -> int:
        """A chore: close sessions that nobody needs; `now` is the event loop's time."""
        return self._links.reap(now)

    async def close(self) -> None:
        self._is_closed = True
        self._gate.close()
        for deadline in self._deadlines:
            deadline.reschedule(self._clock())
        await self._links.close()
        self._lookups.close()

    def describe(self) -> str:
        """Where it may connect to, in one line for people."""
        allowed = self._settings.exceptions
        entries = [str(network) for network in allowed.networks]
        entries += sorted(f"{host}:{port}" for host, port in allowed.hosts)
        return f"http: public addresses{' and ' if entries else ''}{', '.join(entries)}"

    def _guard(self, definition: Definition) -> Guard:
        """For the URL as it is now: it is checked at every call, not only when it is uploaded."""
        if definition.lang != LANG:
            raise InvalidURL(f"unknown lang {definition.lang!r}")
        target = check_url(definition.body)
        if target.port in self._settings.denied_ports:
            raise InvalidURL(f"port {target.port} is not allowed")
        return Guard(
            target=target,
            exceptions=self._settings.exceptions,
            denied_ports=DENIED_PORTS | self._settings.denied_ports,
        )

    async def _converse(self, call: Call, target: Target, link: Link) -> Outcome:
        """Send the call's requests one after the other, and join what they came to."""
        began = self._clock()
        tally = Outcome(done=0, ok=0, bad=(), out=b"", stop=None)
        for request in requests_of(call):
            if request.first and self._clock() - began >= call.budget_s:
                stop = Stop(reason=StopReason.BUDGET, detail="the budget was over")
                return replace(tally, stop=stop, run_s=self._clock() - began)
            results = await self._exchange(call, request, target, link)
            if isinstance(results, Stop):
                return replace(tally, stop=results, run_s=self._clock() - began)
            tally = _added(tally, request, results)
        return replace(tally, run_s=self._clock() - began)

    async def _exchange(
        self, call: Call, request: Request, target: Target, link: Link
    ) -> Results | Stop:
        """One request and its answer, whatever that is; a Stop if there was none in time."""
        deadline = asyncio.timeout(call.job_timeout_s)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                if self._is_closed:
                    return Stop(reason=StopReason.CLOSED, detail="the runner is closed")
                response = await self._post(call, request, target, link)
        except TimeoutError as error:
            if self._is_closed:
                return Stop(reason=StopReason.CLOSED, detail="the runner was closed")
            if not deadline.expired():
                return all_bad(request.count, BAD_ANSWER, _reason(error))
            blamed = request.first if request.count == 1 else None
            detail = f"no answer within {call.job_timeout_s:g} s"
            return Stop(reason=StopReason.TIMEOUT, detail=detail, blamed=blamed)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if self._is_closed:
                return Stop(reason=StopReason.CLOSED, detail="the runner was closed")
            code = REFUSED if _was_refused(error) else BAD_ANSWER
            return all_bad(request.count, code, _reason(error))
        finally:
            self._deadlines.discard(deadline)
        if isinstance(response, str):
            return all_bad(request.count, BAD_ANSWER, response)
        return read(response, request.count, self._wall())

    async def _post(
        self, call: Call, request: Request, target: Target, link: Link
    ) -> Response | str:
        """The answer, or what is wrong with it. Leaving early closes the connection."""
        secret = tenant_secret(self._settings.signing_key, call.handler.tenant)
        async with link.session.post(
            URL(str(target), encoded=True),
            data=io.BytesIO(request.body),
            headers=headers_of(request, call, secret, int(self._wall())),
            allow_redirects=False,
        ) as answer:
            if answer.headers.get("Content-Encoding", "").lower() not in _IDENTITY:
                answer.close()
                return "answered in an encoding that was not asked for"
            s = self._settings
            limit = min(s.answer_max_bytes, s.answer_per_job_bytes * request.count)
            chunks, size = [], 0
            async for chunk in answer.content.iter_any():
                size += len(chunk)
                if size > limit:
                    answer.close()
                    return f"answered more than {limit} bytes"
                chunks.append(chunk)
            return Response(
                status=answer.status,
                media_type=answer.content_type,
                retry_after=answer.headers.get("Retry-After", "").strip(),
                body=b"".join(chunks),
            )


def _host_of(handler: Handler) -> Host:
    try:
        target = check_url(handler.definition.body)
    except InvalidURL:
        return (handler.tenant, "", 0)  # it will be refused, which needs room as well
    return (handler.tenant, target.host, target.port)


def _added(tally: Outcome, request: Request, results: Results) -> Outcome:
    bad = results.bad
    if request.first:
        bad = tuple(replace(line, index=line.index + request.first) for line in bad)
    return replace(
        tally,
        done=tally.done + request.count,
        ok=tally.ok + request.count - len(bad),
        bad=tally.bad + bad,
        out=tally.out + results.out,
    )


def _was_refused(error: BaseException) -> bool:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Refused) or isinstance(getattr(seen, "os_error", None), Refused):
            return True
        seen = seen.__cause__
    return False


def _reason(error: Exception) -> str:
    """For the tenant: what went wrong, without addresses."""
    if _was_refused(error):
        return "the host's address is not public"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host's name could not be resolved"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "could not connect in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "the TLS connection could not be made"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "could not connect"
    return f"the exchange failed: {type(error).__name__}"
