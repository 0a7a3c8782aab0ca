// Command pause holds a pod's namespaces open: it waits for SIGINT or SIGTERM and reaps orphans while it waits.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	child := make(chan os.Signal, 1)
	signal.Notify(child, syscall.SIGCHLD)
	for {
		select {
		case <-stop:
			return
		case <-child:
			// One SIGCHLD may stand for several children: reap until none is left.
			for {
				var status syscall.WaitStatus
				pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
				if err == syscall.EINTR {
					continue
				}
				if pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}
