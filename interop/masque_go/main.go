// An independent CONNECT-UDP client (masque-go on quic-go) against a relay. Run by ../masque_go_test.py.
//
// usage: masque_go CA TEMPLATE TOKEN echo HOST:PORT SIZE...   UDP payloads that must come back
//
//	masque_go CA TEMPLATE TOKEN get URL HOST:PORT       an HTTP/3 download inside the tunnel; prints its SHA-256
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

func run(args []string) error {
	if len(args) < 6 {
		return errors.New("usage: masque_go CA TEMPLATE TOKEN echo|get ...")
	}
	pem, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
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
