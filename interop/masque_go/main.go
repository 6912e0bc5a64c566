// masque-go on quic-go: an independent CONNECT-UDP client against a relay, run by ../masque_go_test.py, and both ends of a path of its own.
//
// usage: masque_go CA TEMPLATE TOKEN echo HOST:PORT SIZE...   UDP payloads that must come back
//
//	masque_go CA TEMPLATE TOKEN get URL HOST:PORT       an HTTP/3 download inside the tunnel; prints its SHA-256
//	masque_go proxy ADDRESS CERT KEY TEMPLATE HOP HOPS  serves, as the HOP-th of HOPS proxies on a path
//	masque_go socks ADDRESS CA NAME TEMPLATE...         a SOCKS5 front end (UDP alone) before the proxies with these templates, whose
//	                                                    certificates are for NAME
//	masque_go version                                   which masque-go and quic-go these are
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/quic-go/masque-go"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/yosida95/uritemplate/v3"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: masque_go version | proxy ADDRESS CERT KEY TEMPLATE HOP HOPS | socks ADDRESS CA NAME TEMPLATE... | " +
	"CA TEMPLATE TOKEN echo|get ...")

func run(args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	switch {
	case args[0] == "version":
		return version()
	case args[0] == "proxy" && len(args) == 7:
		hop, err := strconv.Atoi(args[5])
		if err != nil {
			return err
		}
		hops, err := strconv.Atoi(args[6])
		if err != nil {
			return err
		}
		return proxy(args[1], args[2], args[3], args[4], hop, hops)
	case args[0] == "socks" && len(args) >= 5:
		roots, err := authorities(args[2])
		if err != nil {
			return err
		}
		return socks(args[1], roots, args[3], args[4:])
	}
	return client(args)
}

func authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return roots, nil
}

func version() error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("built without modules")
	}
	versions := make(map[string]string)
	for _, module := range info.Deps {
		versions[module.Path] = module.Version
	}
	fmt.Printf("masque-go %s on quic-go %s\n", versions["github.com/quic-go/masque-go"], versions["github.com/quic-go/quic-go"])
	return nil
}

func client(args []string) error {
	if len(args) < 6 {
		return errUsage
	}
	roots, err := authorities(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if args[3] == "echo" {
		return echo(ctx, roots, args[1], args[2], args[4], args[5:])
	}
	return get(ctx, roots, args[1], args[2], args[4], args[5])
}

func tunnel(ctx context.Context, roots *x509.CertPool, template, token, target string) (*masque.Conn, error) {
	parsed, err := uritemplate.New(template)
	if err != nil {
		return nil, err
	}
	request, err := masque.NewRequest(ctx, parsed, target)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header().Set("Proxy-Authorization", "Bearer "+token)
	}
	transport := masque.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, NextProtos: []string{http3.NextProtoH3}}}
	conn, _, err := transport.Dial(request)
	return conn, err
}

func echo(ctx context.Context, roots *x509.CertPool, template, token, target string, sizes []string) error {
	conn, err := tunnel(ctx, roots, template, token, target)
	if err != nil {
		return err
	}
	defer conn.Close()
	buffer := make([]byte, 65536)
	for _, text := range sizes {
		size, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		payload := make([]byte, size)
		rand.Read(payload)
		if _, err := conn.WriteTo(payload, nil); err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
		if !bytes.Equal(buffer[:n], payload) {
			return fmt.Errorf("%d bytes came back changed", size)
		}
	}
	return nil
}

func get(ctx context.Context, roots *x509.CertPool, template, token, url, target string) error {
	conn, err := tunnel(ctx, roots, template, token, target)
	if err != nil {
		return err
	}
	defer conn.Close()
	inner := &quic.Transport{Conn: conn}
	client := http.Client{Transport: &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		QUICConfig:      &quic.Config{InitialPacketSize: 1200, DisablePathMTUDiscovery: true},
		Dial: func(ctx context.Context, _ string, tlsConfig *tls.Config, config *quic.Config) (*quic.Conn, error) {
			return inner.Dial(ctx, conn.RemoteAddr(), tlsConfig, config)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, response.Body); err != nil {
		return err
	}
	fmt.Printf("%x\n", digest.Sum(nil))
	return nil
}
