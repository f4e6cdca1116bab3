#!/usr/bin/env bash
# Try the README as a new user does: a Debian 13 in a temporary directory, a clone of a commit, `make quickstart`, `make test`. As root.
#   tools/fresh_machine.sh [COMMIT] [VARIABLE=VALUE...]   what follows the commit goes to make: TORCH=cpu
# Needs debootstrap, 15 GB of disk and a quarter of an hour or more. DEBIAN_MIRROR names another mirror. PIP_CERT and proxies are handed on.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "tools/fresh_machine.sh has to be root: it makes a chroot" >&2; exit 2; }
if [ -z "${IN_NAMESPACE:-}" ]; then # mounts and processes end with the script
  exec env IN_NAMESPACE=1 unshare --mount --pid --fork "$0" "$@"
fi

commit=$(git rev-parse --verify "${1:-HEAD}^{commit}")
shift || true
root=$(mktemp -d) && chmod 755 "$root"
clean_up() {
  umount -R "$root/dev" "$root/proc" 2>/dev/null || true
  mountpoint -q "$root/dev" || rm -rf --one-file-system "$root"
}
trap clean_up EXIT

debootstrap --variant=minbase --include=ca-certificates,git,make,python3,python3-venv trixie "$root" \
  "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$root.debootstrap" || { tail "$root.debootstrap" >&2; exit 1; }
rm "$root.debootstrap"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
[ -z "${PIP_CERT:-}" ] || install -D -m 644 "$PIP_CERT" "$root$PIP_CERT"
chroot "$root" /usr/sbin/useradd --create-home --shell /bin/bash user
git clone --quiet --no-hardlinks . "$root/home/user/suite"
git -C "$root/home/user/suite" checkout --quiet "$commit"
chroot "$root" /bin/chown -R user:user /home/user/suite

as_user() { # in a terminal, with a new user's environment
  local handed
  handed=$(env | grep -E '^(PIP_CERT|PIP_DEFAULT_TIMEOUT|https?_proxy|no_proxy)=' | xargs -r printf '%q ')
  script --quiet --return --flush --command "chroot --userspec=user:user '$root' /usr/bin/env -i HOME=/home/user TERM=xterm LANG=C.UTF-8 \
    PATH=/usr/local/bin:/usr/bin:/bin $handed /bin/bash -c 'cd ~/suite && $1'" /dev/null </dev/null
}

timed() {
  local from=$SECONDS
  as_user "$1"
  echo "== $1: $((SECONDS - from)) s"
}

timed "make setup $*"
timed "make quickstart $*"
timed "make test $*"
as_user "du -sh .venv; .venv/bin/python -c \"import platform, torch; print(platform.python_version(), torch.__version__, torch.backends.cpu.get_cpu_capability())\""
