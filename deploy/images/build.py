"""Builds the images with buildah: ``python deploy/images/build.py`` (``make images``).

They are called ``tidelog/controller``, ``tidelog/replica``, ``tidelog/gateway`` and ``tidelog/tidelog``. Each is
tagged with the version and with ``latest``. Their base is the one that the Containerfile names, another image
(``--base IMAGE``), or one that is made on the spot of Debian's packages (``--base debian``) and takes no registry.
The images are left where buildah and podman keep theirs, or below ``--storage``, where what earlier builds have left
and no image needs is removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
CONTAINERFILE = ROOT / "deploy" / "docker" / "Containerfile"
TARGETS = ("controller", "replica", "gateway", "tidelog")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SUITE = "trixie"
"""The release of Debian that a base is made of."""
PACKAGES = ("python3", "python3-venv", "ca-certificates", "passwd")
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
"""Files of the packages that a base does without."""
PIP_CERT = "/run/pip-cert.pem"
"""Where a step of the build finds the authorities that pip trusts on this machine."""
DEBIAN = f"localhost/tidelog/debian:{SUITE}"
"""Name of the base that is made of Debian's packages."""


def storage_flags(folder: Path | None) -> list[str]:
    """Return the flags with which buildah and podman keep images and containers below ``folder``; none for the place
    where they keep them anyway."""
    return [] if folder is None else ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]


def name_of(target: str) -> str:
    """Return the name of a target's image, without a tag."""
    return f"tidelog/{target}"


def revision() -> str:
    """Return the revision of the source in git; "" where it is not known."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class Builder:
    """Builds images and keeps them in one place."""

    def __init__(self, storage: Path | None) -> None:
        self.command = ["buildah", *storage_flags(storage)]

    def run(self, *arguments: str) -> str:
        """Run buildah and return its output. Raises ``subprocess.CalledProcessError`` if it fails; what it complains
        about is on stderr by then."""
        done = subprocess.run([*self.command, *arguments], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    def make_debian_base(self) -> str:
        """Make a base of Debian's packages and return its name. Raises ``subprocess.CalledProcessError``."""
        with tempfile.TemporaryDirectory(prefix="tidelog-base-") as folder:
            archive = f"{folder}/base.tar"
            options = ["--variant=essential", f"--include={','.join(PACKAGES)}", '--aptopt=Acquire::Languages "none"']
            options += [f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT]
            subprocess.run(["mmdebstrap", "--quiet", *options, SUITE, archive], check=True)
            container = self.run("from", "scratch")
            try:
                self.run("add", "--quiet", container, archive, "/")
                self.run("commit", "--quiet", container, DEBIAN)
            finally:
                self.run("rm", container)
        return DEBIAN

    def build(self, target: str, base: str) -> None:
        """Build the image of one target on ``base``; "": on the base that the Containerfile names. Raises
        ``subprocess.CalledProcessError``."""
        options = ["--format", "docker", "--isolation", "chroot", "--layers", "--file", str(CONTAINERFILE)]
        options += ["--target", target, "--label", f"org.opencontainers.image.revision={revision()}"]
        options += ["--build-arg", f"BASE={base}"] if base else []
        if authorities := os.environ.get("PIP_CERT"):
            options += ["--volume", f"{authorities}:{PIP_CERT}:ro", "--build-arg", f"PIP_CERT={PIP_CERT}"]
        for tag in (VERSION, "latest"):
            options += ["--tag", f"{name_of(target)}:{tag}"]
        subprocess.run([*self.command, "build", *options, str(ROOT)], stdout=sys.stderr, check=True)

    def size(self, target: str) -> str:
        """Return the size of a target's image, its base included, as buildah writes it: ``192 MB``."""
        return self.run("images", "--format", "{{.Size}}", f"{name_of(target)}:{VERSION}").splitlines()[0]


@click.command()
@click.option("--base", default="", metavar="IMAGE|debian", help="default: the base that the Containerfile names")
@click.option(
    "--storage", type=click.Path(path_type=Path, file_okay=False), help="default: where buildah keeps images"
)
def main(base: str, storage: Path | None) -> None:
    """Build the images."""
    for command, package in (("buildah", "buildah"), *([("mmdebstrap", "mmdebstrap")] if base == "debian" else [])):
        if shutil.which(command) is None:
            raise click.ClickException(f"there is no command {command} (apt-get install {package})")
    builder = Builder(storage)
    began = time.monotonic()
    try:
        base = builder.make_debian_base() if base == "debian" else base
        for target in TARGETS:
            builder.build(target, base)
            print(f"{name_of(target)}:{VERSION}  {builder.size(target)}", flush=True)
        if storage is not None:
            builder.run("rmi", "--prune")
    except subprocess.CalledProcessError as error:
        way = "" if base else "; where the base cannot be pulled: make images BASE=debian"
        raise click.ClickException(f"{error.cmd[0]} failed, and has said why{way}") from error
    print(f"built in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
