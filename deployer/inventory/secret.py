"""Secrets: an inventory says where one lies, never what it is; once read it shows itself to nobody by accident."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deployer.errors import UsageError
from deployer.inventory.paths import LaptopPath


class Secret:
    """A text that is not printed, formatted, compared, pickled, copied into JSON or put in an argv.

    It is no str: subprocess, json and string methods refuse it. `reveal` is the one way to its text, and is to be
    called where the text is written into a file or a stdin.
    """

    __slots__ = ("__text",)

    def __init__(self, text: str) -> None:
        self.__text = text

    def reveal(self) -> str:
        """The text itself."""
        return self.__text

    def __repr__(self) -> str:
        return "Secret(not shown)"

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return repr(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not serialised")


class SecretSource(BaseModel):
    """Where the laptop has a secret: in a file, or in a variable of the environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: LaptopPath | None = Field(default=None, description="one line of text, readable by its owner alone")
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="a variable's name")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise ValueError("say either file or env")
        return self

    def read(self, key: str, environment: Mapping[str, str]) -> Secret:
        """The secret, without the line end of its file. UsageError, naming `key` of the inventory, if it is not there.

        A file that others than its owner can read is refused, as ssh refuses such keys.
        """
        text = self._from_file(key) if self.file else self._from_variable(key, environment)
        if not text or "\n" in text or "\0" in text:
            what = f"{key}: the secret is empty or has more than one line"
            raise UsageError(what, where=str(self), remedy="it has to be one line of text")
        return Secret(text)

    def _from_variable(self, key: str, environment: Mapping[str, str]) -> str:
        assert self.env is not None
        if self.env not in environment:
            raise UsageError(
                f"{key} asks for ${self.env}, which is not set on this machine",
                where=str(self),
                remedy=f"export {self.env} and repeat",
            )
        return environment[self.env]

    def _from_file(self, key: str) -> str:
        assert self.file is not None
        try:
            mode = self.file.stat().st_mode
            text = self.file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            what = f"{key}: its file cannot be read: {reason}"
            raise UsageError(what, where=str(self.file), remedy="see its owner and mode (ls -l)") from None
        if mode & 0o077:
            raise UsageError(
                f"{key}: others than you can read its file (mode {mode & 0o777:04o})",
                where=str(self.file),
                remedy=f"chmod 600 {self.file}",
            )
        return text.removesuffix("\n").removesuffix("\r")

    def __str__(self) -> str:
        return str(self.file) if self.file else f"${self.env}"


def read_all(sources: Mapping[str, SecretSource], where: str) -> dict[str, Secret]:
    """All secrets of one table of the inventory, by their names there."""
    return {name: source.read(f"[{where}] {name}", os.environ) for name, source in sources.items()}
