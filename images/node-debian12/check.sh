#!/bin/sh
# What only a booted machine shows, before the image is sealed: sh check.sh KERNEL. Says everything that is wrong, then fails.
set -u
wrong=0
say() { echo "check: $*"; }
fail() { echo "check FAILED: $*" >&2; wrong=1; }

[ "$(uname -r)" = "$1" ] && say "kernel $1" || fail "the kernel is $(uname -r), the module was built for $1"

if module=$(modinfo -F filename nvidia 2> /dev/null || modinfo -F filename nvidia-current 2> /dev/null); then
  said=$(modprobe nvidia 2>&1) && said=loaded
  case $said in
    *"Unknown symbol"* | *"Exec format"* | *"rejected"* | *"not found"*) fail "modprobe nvidia: $said" ;;
    loaded) say "nvidia $(modinfo -F version "$module") is loaded" ;;
    *"No such device"*) say "nvidia $(modinfo -F version "$module") finds no device, and nothing else is wrong with it" ;;
    *) fail "modprobe nvidia: $said" ;;
  esac
fi

if [ -x /usr/local/bin/containerd ]; then
  systemctl start containerd.service || fail "containerd does not start: $(journalctl -u containerd -n 5 --no-pager -o cat)"
  export CONTAINER_RUNTIME_ENDPOINT=unix:///run/containerd/containerd.sock
  tries=0
  until /usr/local/bin/crictl version > /dev/null 2>&1 || [ "$tries" -gt 60 ]; do tries=$((tries + 1)); sleep 1; done
  /usr/local/bin/crictl images --output json > /run/images.json || fail "crictl cannot list the images"
  python3 -B -c '
import json, sys
images = json.load(open("/run/images.json"))["images"]
loose = [image["repoTags"] for image in images if not image.get("pinned")]
print(f"check: {len(images)} images, all pinned" if not loose else f"check FAILED: not pinned: {loose}")
sys.exit(bool(loose))' || wrong=1
  systemctl stop containerd.service
fi
exit "$wrong"
