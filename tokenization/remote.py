"""Files behind a URL (`s3://`, `gs://`, …), through fsspec and the package that speaks to that store."""

from __future__ import annotations

from typing import Any, BinaryIO, cast

from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError


def open_remote(url: str) -> BinaryIO:
    """The file's bytes.

    Raises:
        MissingDependencyError: fsspec, or the package for this kind of URL, is not installed.
        UnusableInputError: the file cannot be opened.
    """
    system, path = _system(url)
    try:
        return cast("BinaryIO", system.open(path, "rb"))
    except Exception as error:
        raise _unreadable(url, error) from error


def files_under(url: str) -> list[str]:
    """The URLs of the files under a folder, in order; the URL itself where it is a file."""
    system, path = _system(url)
    try:
        if not system.isdir(path):
            return [url]
        return [system.unstrip_protocol(one) for one in sorted(system.find(path))]
    except Exception as error:
        raise _unreadable(url, error) from error


def _system(url: str) -> tuple[Any, str]:
    kind = url.partition("://")[0]
    package = {
        "s3": "s3fs",
        "s3a": "s3fs",
        "gs": "gcsfs",
        "gcs": "gcsfs",
        "abfs": "adlfs",
        "az": "adlfs",
    }.get(kind)
    try:
        import fsspec.core

        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingDependencyError(
            f"{kind}:// files need fsspec and {package or 'the package for this store'}",
            where=url,
            way_out=f"pip install fsspec {package or ''}".rstrip(),
        ) from error
    except Exception as error:
        raise _unreadable(url, error) from error
    return system, path


def _unreadable(url: str, error: Exception) -> UnusableInputError:
    return UnusableInputError(
        "cannot be read",
        where=url,
        found=type(error).__name__,
        wanted="a readable file and credentials for it",
    )
