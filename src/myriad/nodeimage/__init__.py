"""Node images: a bootable disk with the install half of the roles, proven by booting it.

`definition` and `template` say what an image is, `base`, `chroot`, `store` and `disk` make the disk without booting it,
`packer` boots and seals it, `hang` tells why that did not end, `manifest` and `difference` say what is inside, `guest`
and `proof` boot the result once more.
"""
