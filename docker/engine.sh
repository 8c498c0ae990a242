#!/usr/bin/env bash
# A Docker engine for `make test-images` where none is at hand: on Debian or a derivative, as root.
#   docker/engine.sh start    sets it up (Debian's packages, about 0.5 GB) and starts it
#   docker/engine.sh stop     ends its containers and itself; keeps the folder
#   docker/engine.sh remove   stops it and deletes the folder with its images
# It lives in the folder BERT_ENGINE: a root of its own (mmdebstrap), a mount namespace (unshare, pivot_root), overlay2.
# BERT_ENGINE/bin/docker is its client. Builds need the host's network (BUILD_NETWORK=host): it has no default bridge.
# Where the registry cannot be reached, it makes a stand-in for the base image from the same Debian release.
set -euo pipefail
FOLDER=${BERT_ENGINE:-/var/tmp/bert-engine}
ROOT=$FOLDER/root RELEASE=trixie BASE=debian:trixie-slim
MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
REPOSITORY=$(cd "$(dirname "$0")/.." && pwd)
PACKAGES=ca-certificates,docker.io,docker-cli,docker-compose,docker-buildx,iptables,procps

main() {
    case ${1:-} in
        start) make_root && start && make_base ;;
        stop) stop ;;
        remove) stop && rm -rf --one-file-system "$FOLDER" ;;
        enter) enter ;;
        *) sed -n '2,5p' "$0" && exit 2 ;;
    esac
}

running() { [ -f "$FOLDER/pid" ] && kill -0 "$(cat "$FOLDER/pid")" 2>/dev/null; }

make_root() {
    [ "$(id -u)" = 0 ] || { echo "engine: it needs root, for mounts and namespaces" >&2; exit 1; }
    command -v mmdebstrap >/dev/null || { echo "engine: apt-get install mmdebstrap" >&2; exit 1; }
    [ -x "$ROOT/usr/sbin/dockerd" ] && return
    mkdir -p "$FOLDER"
    rm -rf --one-file-system "$ROOT"  # half of one
    mmdebstrap --quiet --variant=minbase --include="$PACKAGES" "$RELEASE" "$ROOT" "$MIRROR"
}

start() {
    running && return
    mkdir -p "$FOLDER/bin"
    cp /etc/resolv.conf /etc/hosts "$ROOT/etc/"
    cp /etc/ssl/certs/ca-certificates.crt "$ROOT/etc/ssl/certs/"  # with those that this machine trusts beside Debian's
    setsid unshare --mount "$(realpath "$0")" enter >"$FOLDER/log" 2>&1 &
    echo $! >"$FOLDER/pid"
    write_client
    for _ in $(seq 120); do
        "$FOLDER/bin/docker" info >/dev/null 2>&1 && return
        running || break
        sleep 0.5
    done
    echo "engine: it did not start: $FOLDER/log" >&2
    tail -n 5 "$FOLDER/log" >&2
    exit 1
}

# in the new mount namespace: this repository and /tmp keep their paths, so that containers can mount what lies there
enter() {
    mount --make-rprivate /
    mount --bind "$ROOT" "$ROOT"
    for shared in /proc /sys /dev /tmp "$REPOSITORY"; do
        mkdir -p "$ROOT$shared"
        mount --rbind "$shared" "$ROOT$shared"
    done
    mount -t tmpfs tmpfs "$ROOT/run"
    mkdir -p "$ROOT/old"
    cd "$ROOT"
    pivot_root . old
    umount -l /old
    exec dockerd --bridge=none --iptables=false --storage-driver=overlay2 --host=unix:///run/docker.sock
}

write_client() {
    cat >"$FOLDER/bin/docker" <<CLIENT
#!/bin/sh
exec nsenter --target "\$(cat $FOLDER/pid)" --mount --root --wdns="\$PWD" env DOCKER_HOST=unix:///run/docker.sock docker "\$@"
CLIENT
    chmod +x "$FOLDER/bin/docker"
}

make_base() {
    local docker=$FOLDER/bin/docker
    "$docker" image inspect "$BASE" >/dev/null 2>&1 && return
    timeout 60 "$docker" pull --quiet "$BASE" 2>/dev/null && return
    echo "engine: $BASE cannot be pulled; its stand-in is a minimal $RELEASE made here" >&2
    mmdebstrap --quiet --variant=minbase --include=ca-certificates --aptopt='Apt::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --customize-hook='copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs' \
        --customize-hook='printf "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n" >"$1/etc/pip.conf"' \
        "$RELEASE" - "$MIRROR" | "$docker" import --change 'CMD ["bash"]' - "$BASE" >/dev/null
}

stop() {
    running || { rm -f "$FOLDER/pid"; return 0; }
    "$FOLDER/bin/docker" ps --quiet --all | xargs --no-run-if-empty "$FOLDER/bin/docker" rm --force >/dev/null
    "$FOLDER/bin/docker" network prune --force >/dev/null
    local pid
    pid=$(cat "$FOLDER/pid")
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    rm -f "$FOLDER/pid"
}

main "$@"
