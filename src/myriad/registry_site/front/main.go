// Command registry-front stands before the site's registry where teams have credentials: it ends TLS, knows users by
// basic authentication, lets everybody read what belongs to nobody, and a team read and write its own path alone.
//
// The registry itself (distribution) can tell users apart, and not what each may write; a token service would be a
// second program with keys of its own. This is one, with no dependency beyond Go's library.
package main

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// User is one entry of the access file.
type User struct {
	Salt   string   `json:"salt"`
	Rounds int      `json:"rounds"`
	Hash   string   `json:"hash"`
	Pull   []string `json:"pull"`
	Push   []string `json:"push"`
}

// Access says who may do what. Prefixes end with a slash; an empty one is everything.
type Access struct {
	Private []string        `json:"private"`
	Users   map[string]User `json:"users"`
}

func readAccess(name string) (*Access, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	access := &Access{}
	if err := json.Unmarshal(data, access); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for user, entry := range access.Users {
		if entry.Rounds < 1 || entry.Hash == "" {
			return nil, fmt.Errorf("%s: user %s has no hash", name, user)
		}
	}
	return access, nil
}

func matches(prefixes []string, repository string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(repository, prefix) {
			return true
		}
	}
	return false
}

// Gate decides about requests.
type Gate struct {
	access atomic.Pointer[Access]
	known  sync.Map // header that was right -> *seen, so that the hash is not derived for every layer
}

type seen struct {
	user   string
	access *Access
}

// user gives the name behind a request, empty for nobody, and whether its credentials are right.
func (g *Gate) user(request *http.Request) (string, bool) {
	header := request.Header.Get("Authorization")
	if header == "" {
		return "", true
	}
	access := g.access.Load()
	key := sha256.Sum256([]byte(header))
	if entry, ok := g.known.Load(key); ok && entry.(*seen).access == access {
		return entry.(*seen).user, true
	}
	name, password, ok := request.BasicAuth()
	if !ok {
		return "", false
	}
	entry, exists := access.Users[name]
	salt, _ := hex.DecodeString(entry.Salt)
	wanted, _ := hex.DecodeString(entry.Hash)
	rounds := max(entry.Rounds, 1)
	derived, err := pbkdf2.Key(sha256.New, password, salt, rounds, 32)
	if err != nil || !exists || subtle.ConstantTimeCompare(derived, wanted) != 1 {
		return "", false
	}
	g.known.Store(key, &seen{user: name, access: access})
	return name, true
}

// repository of a path below /v2/, empty for the API's root and the catalog. The path must be clean already.
func repository(clean string) string {
	rest := strings.TrimPrefix(clean, "/v2/")
	for _, marker := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
		if at := strings.LastIndex(rest, marker); at > 0 {
			return rest[:at]
		}
	}
	return ""
}

// allowed tells whether a user may do this, with the repository in question.
func (g *Gate) allowed(user, method, clean string, query url.Values) (bool, string) {
	access := g.access.Load()
	entry := access.Users[user]
	reads := method == http.MethodGet || method == http.MethodHead
	if clean == "/v2/" || clean == "/v2" {
		// Docker and podman ask here whether a registry knows users, and send credentials only to one that says so.
		return reads && user != "", "this registry"
	}
	if clean == "/v2/_catalog" {
		// It names every team's images.
		return reads && user != "" && matches(entry.Pull, ""), "_catalog"
	}
	name := repository(clean)
	if name == "" {
		return false, ""
	}
	mayPull := func(repository string) bool {
		return !matches(access.Private, repository+"/") || (user != "" && matches(entry.Pull, repository+"/"))
	}
	if reads {
		return mayPull(name), name
	}
	if user == "" || !matches(entry.Push, name+"/") {
		return false, name
	}
	// A layer may be mounted from another repository only by one who may read that.
	if from := query.Get("from"); from != "" && !mayPull(from) {
		return false, name
	}
	return true, name
}

func refuse(response http.ResponseWriter, status int, code, message string) {
	response.Header().Set("Content-Type", "application/json")
	response.Header().Set("Docker-Distribution-API-Version", "registry/2.0")
	if status == http.StatusUnauthorized {
		response.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
	}
	response.WriteHeader(status)
	body := map[string]any{"errors": []map[string]string{{"code": code, "message": message}}}
	_ = json.NewEncoder(response).Encode(body)
}

func (g *Gate) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		given := request.URL.Path
		clean := path.Clean(given)
		if strings.HasSuffix(given, "/") && clean != "/" {
			clean += "/"
		}
		// What is checked must be what the registry then reads: no dots, doubled or encoded slashes.
		if clean != given || request.URL.RawPath != "" || !(clean == "/v2" || strings.HasPrefix(clean, "/v2/")) {
			refuse(response, http.StatusNotFound, "UNSUPPORTED", "no such path")
			return
		}
		user, right := g.user(request)
		if !right {
			refuse(response, http.StatusUnauthorized, "UNAUTHORIZED", "user or password is wrong")
			return
		}
		allowed, name := g.allowed(user, request.Method, clean, request.URL.Query())
		if !allowed && user == "" {
			refuse(response, http.StatusUnauthorized, "UNAUTHORIZED", "credentials are needed for "+name)
			return
		}
		if !allowed {
			refuse(response, http.StatusForbidden, "DENIED", user+" may not do this in "+name)
			return
		}
		request.Header.Del("Authorization") // the registry behind knows no users
		next.ServeHTTP(response, request)
	})
}

func run() error {
	listen := flag.String("listen", ":5000", "address to listen on")
	upstream := flag.String("upstream", "http://127.0.0.1:5001", "the registry")
	accessFile := flag.String("access", "", "file with users and paths")
	certificate := flag.String("certificate", "", "certificate chain; plain HTTP when empty")
	key := flag.String("key", "", "its key")
	flag.Parse()
	target, err := url.Parse(*upstream)
	if err != nil {
		return err
	}
	gate := &Gate{}
	access, err := readAccess(*accessFile)
	if err != nil {
		return err
	}
	gate.access.Store(access)
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	go func() {
		for range again {
			if access, err := readAccess(*accessFile); err != nil {
				log.Printf("the access file is not taken, the one before stays: %v", err)
			} else {
				gate.known.Clear()
				gate.access.Store(access)
			}
		}
	}()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(target)
			request.Out.Host = request.In.Host
			request.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 256,
			DisableCompression:  true,
		},
		ErrorHandler: func(response http.ResponseWriter, _ *http.Request, err error) {
			if !errors.Is(err, context.Canceled) {
				log.Printf("the registry does not answer: %v", err)
			}
			refuse(response, http.StatusBadGateway, "UNAVAILABLE", "the registry behind does not answer")
		},
	}
	server := &http.Server{
		Addr:              *listen,
		Handler:           gate.handler(proxy),
		ReadHeaderTimeout: 30 * time.Second,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12},
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	go func() {
		<-stop.Done()
		_ = server.Shutdown(context.Background())
	}()
	if *certificate != "" {
		err = server.ListenAndServeTLS(*certificate, *key)
	} else {
		err = server.ListenAndServe()
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatalf("registry-front: %v", err)
	}
}
