"""Runs on the host, beside remote_fetch.py: why a fetch failed, as one of the kinds that failure.py can explain."""

from __future__ import annotations

import errno

DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EACCES, errno.ENOENT})


class Failure(Exception):
    """`kind` is one that failure.py knows."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def classified(error: Exception) -> Failure:
    """Which of the kinds that failure.py can explain."""
    import httpx2
    from huggingface_hub import errors

    if isinstance(error, Failure):
        return error
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, errors.HfHubHTTPError):
        return Failure(_of_answer(error, error.response.status_code), text)
    if isinstance(error, OSError) and error.errno in DISK:
        return Failure("disk", str(error))
    if isinstance(error, OSError | httpx2.HTTPError):
        return Failure("network", f"{type(error).__name__}: {text}")
    return Failure("unexpected", f"{type(error).__name__}: {text}")


def _of_answer(error: Exception, status: int) -> str:
    from huggingface_hub import errors

    kinds: tuple[tuple[type[Exception], str], ...] = (
        (errors.GatedRepoError, "gated"),
        (errors.RepositoryNotFoundError, "repo"),
        (errors.RevisionNotFoundError, "revision"),
        (errors.RemoteEntryNotFoundError, "entry"),
    )
    for kind, name in kinds:
        if isinstance(error, kind):
            return name
    if status in {408, 429} or status >= 500:
        return "busy"
    return "refused" if status in {401, 403} else "answer"
