"""Container images and root file systems without a daemon, bit-identical on every build.

`build` is the interface for the rest of Myriad; `oci` writes layers, manifests and archives; `rootfs` makes Debian
root file systems;
`python` makes the layers of Python images; `definition` reads `images/<name>/image.yml`.
"""
