// quic-go's HTTP/3 server and client, the two ends of a download. Run by ../acks_test.py.
//
// usage: quic_go serve ADDRESS CERT KEY FILE    what is in FILE is at every path
//
//	quic_go get CA URL direct|socks ADDRESS   a line of JSON: status, sha256, bytes, seconds; straight to ADDRESS, or through the SOCKS5
//	                                          proxy there (RFC 1928, UDP ASSOCIATE), which is told the URL's name
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// Packets of one size, which fit into four tunnels, so that runs differ by acknowledgements alone.
var settings = &quic.Config{InitialPacketSize: 1200, DisablePathMTUDiscovery: true}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 5 && args[0] == "serve":
		return serve(args[1], args[2], args[3], args[4])
	case len(args) == 5 && args[0] == "get":
		return get(args[1], args[2], args[3], args[4])
	}
	return errors.New("usage: quic_go serve ADDRESS CERT KEY FILE | get CA URL direct|socks ADDRESS")
}

func serve(address, cert, key, file string) error {
	body, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	server := http3.Server{
		TLSConfig:  http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
		QUICConfig: settings,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.Write(body)
		}),
	}
	fmt.Println("the server is up")
	return server.Serve(socket)
}

func get(ca, address, way, via string) error {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificate", ca)
	}
	place, err := url.Parse(address)
	if err != nil {
		return err
	}
	socket, peer, err := open(way, via, place)
	if err != nil {
		return err
	}
	carrier := &quic.Transport{Conn: socket}
	client := http.Client{Transport: &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		QUICConfig:      settings,
		Dial: func(ctx context.Context, _ string, tlsConfig *tls.Config, config *quic.Config) (*quic.Conn, error) {
			return carrier.Dial(ctx, peer, tlsConfig, config)
		},
	}, Timeout: 90 * time.Second}
	began := time.Now()
	response, err := client.Get(address)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	digest := sha256.New()
	size, err := io.Copy(digest, response.Body)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"status": response.StatusCode, "sha256": fmt.Sprintf("%x", digest.Sum(nil)), "bytes": size, "seconds": time.Since(began).Seconds(),
	})
}

func open(way, via string, place *url.URL) (net.PacketConn, net.Addr, error) {
	switch way {
	case "direct":
		peer, err := net.ResolveUDPAddr("udp", via)
		if err != nil {
			return nil, nil, err
		}
		socket, err := net.ListenPacket("udp", ":0")
		return socket, peer, err
	case "socks":
		return associate(via, place)
	}
	return nil, nil, fmt.Errorf("%q is neither direct nor socks", way)
}

// An association with one target. It ends with its control connection, which is kept.
type association struct {
	control net.Conn
	socket  *net.UDPConn
	header  []byte
	peer    net.Addr
}

func associate(proxy string, place *url.URL) (net.PacketConn, net.Addr, error) {
	port, err := strconv.Atoi(place.Port())
	if err != nil {
		return nil, nil, err
	}
	control, err := net.DialTimeout("tcp", proxy, 10*time.Second)
	if err != nil {
		return nil, nil, err
	}
	relay, err := ask(control)
	if err != nil {
		control.Close()
		return nil, nil, fmt.Errorf("the SOCKS proxy: %w", err)
	}
	socket, err := net.DialUDP("udp", nil, relay)
	if err != nil {
		control.Close()
		return nil, nil, err
	}
	socket.SetReadBuffer(4 << 20)
	name := place.Hostname()
	header := append([]byte{0, 0, 0, 3, byte(len(name))}, name...)
	// To quic-go all of them come from one address, which it never looks at.
	peer := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: port}
	return &association{control, socket, append(header, byte(port>>8), byte(port)), peer}, peer, nil
}

func ask(control net.Conn) (*net.UDPAddr, error) {
	control.SetDeadline(time.Now().Add(10 * time.Second))
	answer := make([]byte, 10)
	for _, step := range []struct {
		message []byte
		length  int
	}{{[]byte{5, 1, 0}, 2}, {[]byte{5, 3, 0, 1, 0, 0, 0, 0, 0, 0}, 10}} {
		if _, err := control.Write(step.message); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(control, answer[:step.length]); err != nil {
			return nil, err
		}
		if answer[0] != 5 || answer[1] != 0 {
			return nil, fmt.Errorf("it answered % x", answer[:step.length])
		}
	}
	if answer[3] != 1 {
		return nil, errors.New("it takes datagrams at no IPv4 address")
	}
	control.SetDeadline(time.Time{})
	return &net.UDPAddr{IP: net.IP(answer[4:8]), Port: int(answer[8])<<8 | int(answer[9])}, nil
}

func (a *association) WriteTo(payload []byte, _ net.Addr) (int, error) {
	datagram := make([]byte, 0, len(a.header)+len(payload))
	datagram = append(append(datagram, a.header...), payload...)
	_, err := a.socket.Write(datagram)
	return len(payload), err
}

func (a *association) ReadFrom(buffer []byte) (int, net.Addr, error) {
	datagram := make([]byte, 65536)
	for {
		n, err := a.socket.Read(datagram)
		if err != nil {
			return 0, nil, err
		}
		if payload, ok := behind(datagram[:n]); ok {
			return copy(buffer, payload), a.peer, nil
		}
	}
}

// What is behind the header of a datagram (RFC 1928 section 7).
func behind(datagram []byte) ([]byte, bool) {
	if len(datagram) < 7 || datagram[2] != 0 {
		return nil, false
	}
	at := 10
	switch datagram[3] {
	case 3:
		at = 7 + int(datagram[4])
	case 4:
		at = 22
	}
	if len(datagram) < at {
		return nil, false
	}
	return datagram[at:], true
}

func (a *association) Close() error {
	return errors.Join(a.control.Close(), a.socket.Close())
}

func (a *association) LocalAddr() net.Addr                { return a.socket.LocalAddr() }
func (a *association) SetDeadline(t time.Time) error      { return a.socket.SetDeadline(t) }
func (a *association) SetReadDeadline(t time.Time) error  { return a.socket.SetReadDeadline(t) }
func (a *association) SetWriteDeadline(t time.Time) error { return a.socket.SetWriteDeadline(t) }
