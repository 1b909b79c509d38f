"""Install scripts in Bash for images of any kind, put together from a few parts.

They run as root, with ``AGENT_PREFIX`` (the folder to fill) and ``AGENT_VERSION``, and need
``tar`` and ``gzip``, which tasks need anyway. Packages come from the registry of npm or PyPI, as
tarballs where no package manager of the language is needed; mirrors and proxies are those of
the host (:data:`INSTALL_ENV`) or the image.

A version is exact, the beginning of one (``2.1``: the newest ``2.1.x``), or ``latest``.
"""

from __future__ import annotations

import shlex
from typing import Final

NODE_VERSION: Final = "22.23.5"
"""Brought where the image has no Node, or one that is too old."""
PYTHON_VERSION: Final = "3.12"
"""Brought where the image has no Python that will do; the newest that aider takes."""

UV_VERSION: Final = "0.13.9"

INSTALL_ENV: Final = {
    name: f"${{{name}:-}}"
    for name in (
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("NPM_CONFIG_REGISTRY", "PIP_INDEX_URL", "UV_INDEX_URL"),
    )
}
"""Variables of the host that say where packages come from, as far as they are set."""

PRELUDE: Final = r"""
set -euo pipefail
export HOME="${HOME:-/root}" PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
die() { echo "pytest-harbor: $*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

case $(uname -m) in
  x86_64 | amd64) arch=x64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) die "there is no build for $(uname -m)" ;;
esac
libc=glibc
for loader in /lib/ld-musl-*; do
  [ ! -e "$loader" ] || libc=musl
done

# Packages of the distribution, whichever it is.
distro_install() {
  if has apt-get; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"
  elif has apk; then
    apk add --no-cache "$@"
  elif has dnf; then
    dnf install -y -q "$@"
  elif has microdnf; then
    microdnf install -y "$@"
  elif has yum; then
    yum install -y -q "$@"
  elif has zypper; then
    zypper --non-interactive install "$@"
  elif has pacman; then
    pacman -Sy --noconfirm "$@"
  else
    return 1
  fi
}

# Prints what is at a URL, or fails. $2, if given, is a header.
fetch() {
  if ! has curl && ! has wget; then
    distro_install curl ca-certificates >&2 || die "the image needs curl or wget"
  fi
  if has curl; then
    curl -fsSL --retry 3 --connect-timeout 30 ${2:+-H "$2"} "$1"
  else
    wget -q -O - ${2:+--header "$2"} "$1"
  fi
}
"""

_NPM: Final = r"""
registry=${NPM_CONFIG_REGISTRY:-${npm_config_registry:-https://registry.npmjs.org}}
registry=${registry%/}

# The version that "$2" means for the package "$1"; "$3" is what follows it in the tarball's name.
npm_version() {
  case $2 in
    *.*.* | *-*)
      echo "$2"
      return
      ;;
  esac
  local found list
  list=$(fetch "$registry/$1" "accept: application/vnd.npm.install-v1+json") ||
    die "cannot ask $registry for $1"
  if [[ $2 =~ ^[0-9] ]]; then
    found=$(grep -oE "\"${2//./\\.}(\.[0-9]+)+\": ?\{" <<<"$list" | tr -d '": {' | sort -uV | tail -n 1) || true
  else
    found=$(grep -oE "\"${2:-latest}\": ?\"[^\"]+\"" <<<"$list" | head -n 1 | cut -d'"' -f4) || true
  fi
  [ -n "$found" ] || die "$registry has no version $2 of $1"
  echo "$found"
}

# Unpacks version "$2" of the package "$1" into the folder "$3".
npm_unpack() {
  local url="$registry/$1/-/${1##*/}-$2.tgz" tarball="$3.tgz"
  mkdir -p "$3"
  fetch "$url" >"$tarball" || die "cannot fetch $url"
  tar -xzf "$tarball" -C "$3" --strip-components=1 || die "cannot unpack $url"
  rm -f "$tarball"
}
"""

_NODE: Final = r"""
# Lets "node" be one of at least version "$1": the image's, or one of our own.
need_node() {
  local major
  major=$(node --version 2>/dev/null | sed -n 's/^v\([0-9]*\)\..*/\1/p') || true
  if [ "${major:-0}" -ge "$1" ]; then
    node=$(command -v node)
    return
  fi
  if [ "$libc" = musl ]; then
    distro_install nodejs >&2 || die "the image needs node $1 or newer"
    node=$(command -v node) || die "the image needs node $1 or newer"
    return
  fi
  npm_unpack "node-linux-$arch" "$node_version" "$AGENT_PREFIX/node"
  rm -rf "$AGENT_PREFIX/node/include" "$AGENT_PREFIX/node/share"
  node=$AGENT_PREFIX/node/bin/node
}
"""

_PYTHON: Final = r"""
# Makes a virtual environment "$AGENT_PREFIX/venv" with the requirement "$1", of a Python that is
# at least 3."$2" and at most 3."$3": the image's, else one that uv brings, else the distribution's.
python_install() {
  local venv=$AGENT_PREFIX/venv
  if ! has uv && ! python_fits "$2" "$3" && ! bring_uv; then
    echo "uv cannot be fetched from GitHub: trying the distribution's Python" >&2
    if has apt-get; then distro_install python3 python3-venv; else distro_install python3; fi >&2 || true
    python_fits "$2" "$3" || die "the image needs Python 3.$2 to 3.$3 with venv, or uv"
  fi
  if ! has uv; then
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir "$1" >&2
    return
  fi
  export UV_PYTHON_INSTALL_DIR=$AGENT_PREFIX/python UV_NO_CACHE=1 UV_LINK_MODE=copy
  uv venv -q --python ">=3.$2,<=3.$3.99" "$venv" 2>/dev/null ||
    uv venv -q --python "$python_version" "$venv"
  uv pip install -q --python "$venv/bin/python" "$1" >&2
}

python_fits() {
  python3 -c "import sys, venv, ensurepip; sys.exit(not (3, $1) <= sys.version_info[:2] <= (3, $2))" 2>/dev/null
}

bring_uv() {
  local machine=x86_64
  [ "$arch" = x64 ] || machine=aarch64
  local name=uv-$machine-unknown-linux-musl
  mkdir -p "$AGENT_PREFIX/uv"
  fetch "https://github.com/astral-sh/uv/releases/download/$uv_version/$name.tar.gz" |
    tar -xz -C "$AGENT_PREFIX/uv" --strip-components=1 2>/dev/null || return
  PATH=$AGENT_PREFIX/uv:$PATH
}

# The requirement for the package "$1" in version "$2".
python_requirement() {
  case $2 in
    '' | latest) echo "$1" ;;
    *.*.*) echo "$1==$2" ;;
    *) echo "$1==$2.*" ;;
  esac
}
"""


def npm_script(*parts: str) -> str:
    """A script of ``parts`` that may use ``npm_version`` and ``npm_unpack``."""
    return "\n".join((PRELUDE, _NPM, *parts))


def node_script(*parts: str) -> str:
    """As :func:`npm_script`, with ``need_node`` as well."""
    return npm_script(f"node_version={NODE_VERSION}", _NODE, *parts)


def python_script(*parts: str) -> str:
    """A script of ``parts`` that may use ``python_install`` and ``python_requirement``."""
    pins = f"uv_version={UV_VERSION}\npython_version={PYTHON_VERSION}"
    return "\n".join((PRELUDE, pins, _PYTHON, *parts))


def launcher(name: str, content: str) -> str:
    """The part of a script that puts a launcher into the prefix's ``bin``.

    ``content`` is a shell script; its ``$AGENT_PREFIX`` is the folder that the launcher is in.
    """
    lines = ("#!/bin/sh", "AGENT_PREFIX=${0%/*}/..", content.strip(), "")
    path = f'"$AGENT_PREFIX/bin/{name}"'
    return f"printf %s {shlex.quote(chr(10).join(lines))} >{path}\nchmod 755 {path}\n"
