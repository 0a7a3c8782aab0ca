module myriad.dev/pause

go 1.26
