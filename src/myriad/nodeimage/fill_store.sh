#!/bin/sh
# Runs inside the image's tree: fill_store.sh SOURCE REGISTRY PIN REF@DIGEST...
# The image's own containerd pulls each REF of REGISTRY from SOURCE, unpacks it, and labels it with PIN. As after a pull by the
# kubelet it has two names, with its tag and with its digest: pods ask by either.
set -eu
source=$1 registry=$2 pin=$3
shift 3
mkdir -p "/run/myriad-hosts/$registry"
printf '[host."%s"]\n  capabilities = ["pull", "resolve"]\n' "$source" > "/run/myriad-hosts/$registry/hosts.toml"
# The plugins that talk to a kernel about pods are not needed to unpack.
cat > /run/containerd-build.toml << 'END'
version = 3
disabled_plugins = [
  "io.containerd.grpc.v1.cri",
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.podsandbox.controller.v1.podsandbox",
]
END
/usr/local/bin/containerd --config /run/containerd-build.toml > /run/containerd-build.log 2>&1 &
daemon=$!
tries=0
until /usr/local/bin/ctr version > /dev/null 2>&1; do
  tries=$((tries + 1))
  if [ "$tries" -gt 150 ] || ! kill -0 "$daemon" 2> /dev/null; then
    tail -n 5 /run/containerd-build.log
    echo "containerd does not answer"
    exit 1
  fi
  sleep 0.2
done
for wanted in "$@"; do
  ref=${wanted%@*}
  echo "pull $ref"
  if ! /usr/local/bin/ctr --namespace k8s.io images pull --hosts-dir /run/myriad-hosts --snapshotter overlayfs \
    --label "$pin" "$ref" > /run/pull.log 2>&1; then
    tail -n 5 /run/pull.log
    tail -n 5 /run/containerd-build.log
    exit 1
  fi
  /usr/local/bin/ctr --namespace k8s.io images tag --force "$ref" "${ref%:*}@${wanted##*@}" > /dev/null
  /usr/local/bin/ctr --namespace k8s.io images label "${ref%:*}@${wanted##*@}" "$pin" > /dev/null
done
echo ---
/usr/local/bin/ctr --namespace k8s.io images list
kill "$daemon"
wait "$daemon" || true
