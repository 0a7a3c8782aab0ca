module myriad.dev/registry-front

go 1.26
