"""Where everything lies on the host. One place decides the names; all rooms ask here."""

from __future__ import annotations

from dataclasses import dataclass

from deployer.inventory.model import Inventory


@dataclass(frozen=True)
class Layout:
    """Absolute POSIX paths on the host, as text: they end in remote commands and unit files."""

    root: str
    service: str
    user: str

    @classmethod
    def of(cls, inventory: Inventory) -> Layout:
        return cls(root=inventory.root, service=inventory.service, user=inventory.user)

    @property
    def releases(self) -> str:
        return f"{self.root}/releases"

    def release(self, identifier: str) -> str:
        return f"{self.releases}/{identifier}"

    @property
    def current(self) -> str:
        """The symlink to the release that the service runs from."""
        return f"{self.root}/current"

    @property
    def wheels(self) -> str:
        return f"{self.root}/wheels"

    @property
    def models(self) -> str:
        return f"{self.root}/models"

    @property
    def store(self) -> str:
        """Content-addressed: <sha256>/<file name>; model folders hold hard links into it."""
        return f"{self.models}/store"

    @property
    def state(self) -> str:
        return f"{self.root}/state"

    @property
    def digests(self) -> str:
        """What the host remembers of files it has read: identity -> SHA-256."""
        return f"{self.state}/digests.json"

    @property
    def audit(self) -> str:
        """One JSON line per deployment."""
        return f"{self.state}/audit.log"

    @property
    def lock(self) -> str:
        """A folder whose creation is atomic; under /run, so that a reboot clears it."""
        return f"/run/lock/{self.service}.deploy"

    @property
    def etc(self) -> str:
        return "/etc/ddtree"

    @property
    def config(self) -> str:
        """What `vllm serve --config` reads."""
        return f"{self.etc}/{self.service}.yaml"

    @property
    def environment(self) -> str:
        """The unit's EnvironmentFile: root only, it may hold the API key."""
        return f"{self.etc}/{self.service}.env"

    @property
    def unit(self) -> str:
        return f"{self.service}.service"

    @property
    def unit_file(self) -> str:
        return f"/etc/systemd/system/{self.unit}"

    @property
    def way_back(self) -> str:
        """A script that is there only while a switch is under way."""
        return f"{self.state}/way-back.sh"

    @property
    def way_back_unit(self) -> str:
        """What runs it."""
        return f"{self.service}-way-back.service"

    @property
    def way_back_file(self) -> str:
        return f"/etc/systemd/system/{self.way_back_unit}"

    @property
    def way_back_files(self) -> tuple[str, str]:
        """The unit, and the link by which it is enabled."""
        return self.way_back_file, f"/etc/systemd/system/multi-user.target.wants/{self.way_back_unit}"

    @property
    def state_dir(self) -> str:
        return f"/var/lib/{self.service}"

    @property
    def cache_dir(self) -> str:
        return f"/var/cache/{self.service}"
