// Both ends of a path of masque-go, for the lab's subject of that name (../../subjects/masque-go.toml): its proxy, and before its client a
// SOCKS5 front end (RFC 1928), which it has not. That serves UDP ASSOCIATE alone: masque-go has CONNECT-UDP and no CONNECT.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/quic-go/masque-go"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/yosida95/uritemplate/v3"
)

const (
	// What the last hop's packets have, and how much larger those of each hop before it are: a masque-go that is handed a datagram which is
	// too large for its packets closes the flow. So neither end looks for larger ones.
	lastPacket = 1300
	perHop     = 40

	// A new target of an association that has so many is dropped.
	maxTargets = 256
	patience   = 20 * time.Second
)

func settings(hop, hops int) *quic.Config {
	return &quic.Config{
		EnableDatagrams:         true,
		InitialPacketSize:       uint16(lastPacket + perHop*(hops-hop)),
		DisablePathMTUDiscovery: true,
		MaxIncomingStreams:      1 << 16,
		MaxIdleTimeout:          time.Minute,
		KeepAlivePeriod:         15 * time.Second,
	}
}

// Serves as masque-go's own command does, with packets as large as the place on the path wants them.
func proxy(address, cert, key, template string, hop, hops int) error {
	parsed, err := uritemplate.New(template)
	if err != nil {
		return err
	}
	place, err := url.Parse(template)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	var carrier masque.Proxy
	mux := http.NewServeMux()
	mux.HandleFunc(place.Path, func(w http.ResponseWriter, r *http.Request) {
		request, err := masque.ParseProxyRequest(r, parsed)
		if err != nil {
			status := http.StatusBadRequest
			var wrong *masque.ProxyRequestParseError
			if errors.As(err, &wrong) {
				status = wrong.HTTPStatus
			}
			w.WriteHeader(status)
			return
		}
		carrier.Proxy(w, request)
	})
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	server := http3.Server{
		TLSConfig:       http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
		QUICConfig:      settings(hop, hops),
		EnableDatagrams: true,
		Handler:         mux,
	}
	fmt.Println("the proxy is up")
	return server.Serve(socket)
}

// The connection to the last proxy, each one through those before it.
func dial(ctx context.Context, roots *x509.CertPool, name string, templates []string) (*masque.ClientConn, *uritemplate.Template, error) {
	tlsConfig := &tls.Config{RootCAs: roots, ServerName: name, NextProtos: []string{http3.NextProtoH3}}
	var last *masque.ClientConn
	var template *uritemplate.Template
	for i, text := range templates {
		next, err := uritemplate.New(text)
		if err != nil {
			return nil, nil, err
		}
		place, err := url.Parse(text)
		if err != nil {
			return nil, nil, err
		}
		config := settings(i+1, len(templates))
		var conn *quic.Conn
		if last == nil {
			conn, err = quic.DialAddr(ctx, place.Host, tlsConfig, config)
		} else {
			conn, err = through(ctx, last, template, place.Host, tlsConfig, config)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("proxy %d: %w", i+1, err)
		}
		if last, err = (&masque.Transport{}).NewClientConn(conn); err != nil {
			return nil, nil, fmt.Errorf("proxy %d: %w", i+1, err)
		}
		template = next
	}
	return last, template, nil
}

func through(ctx context.Context, last *masque.ClientConn, template *uritemplate.Template, target string, tlsConfig *tls.Config,
	config *quic.Config) (*quic.Conn, error) {
	flow, err := open(last, template, target)
	if err != nil {
		return nil, err
	}
	address, err := net.ResolveUDPAddr("udp", target)
	if err != nil {
		return nil, err
	}
	return (&quic.Transport{Conn: flow}).Dial(ctx, address, tlsConfig, config)
}

func open(last *masque.ClientConn, template *uritemplate.Template, target string) (*masque.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := masque.NewRequest(ctx, template, target)
	if err != nil {
		return nil, err
	}
	flow, _, err := last.Dial(request)
	return flow, err
}

func socks(address string, roots *x509.CertPool, name string, templates []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	last, template, err := dial(ctx, roots, name, templates)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("the path is up")
	for {
		control, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer control.Close()
			if err := associate(control, last, template); err != nil {
				log.Printf("%s: %v", control.RemoteAddr(), err)
			}
		}()
	}
}

// One association, as long as its control connection lives.
func associate(control net.Conn, last *masque.ClientConn, template *uritemplate.Template) error {
	control.SetDeadline(time.Now().Add(patience))
	if err := handshake(control); err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer socket.Close()
	socket.SetReadBuffer(4 << 20)
	port := socket.LocalAddr().(*net.UDPAddr).Port
	if _, err := control.Write([]byte{5, 0, 0, 1, 127, 0, 0, 1, byte(port >> 8), byte(port)}); err != nil {
		return err
	}
	control.SetDeadline(time.Time{})
	go carry(socket, last, template)
	io.Copy(io.Discard, control)
	return nil
}

// Up to the request, which must be UDP ASSOCIATE.
func handshake(control net.Conn) error {
	head := make([]byte, 2)
	if _, err := io.ReadFull(control, head); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, control, int64(head[1])); err != nil {
		return err
	}
	if _, err := control.Write([]byte{5, 0}); err != nil {
		return err
	}
	request := make([]byte, 4)
	if _, err := io.ReadFull(control, request); err != nil {
		return err
	}
	rest := int64(4 + 2)
	switch request[3] {
	case 3:
		length := make([]byte, 1)
		if _, err := io.ReadFull(control, length); err != nil {
			return err
		}
		rest = int64(length[0]) + 2
	case 4:
		rest = 16 + 2
	}
	if _, err := io.CopyN(io.Discard, control, rest); err != nil {
		return err
	}
	if request[1] != 3 {
		control.Write([]byte{5, 7, 0, 1, 0, 0, 0, 0, 0, 0})
		return fmt.Errorf("command %d is none of masque-go's: it carries UDP alone", request[1])
	}
	return nil
}

// Datagrams of an association: each target has a flow, which the first datagram to it opens; others wait in the socket until it is there.
func carry(socket *net.UDPConn, last *masque.ClientConn, template *uritemplate.Template) {
	var client net.Addr
	flows := make(map[string]*masque.Conn)
	var back sync.WaitGroup
	defer func() {
		for _, flow := range flows {
			flow.Close()
		}
		back.Wait()
	}()
	buffer := make([]byte, 65536)
	for {
		n, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		if client == nil {
			client = from
		}
		target, header, payload, ok := split(buffer[:n])
		if !ok || from.String() != client.String() {
			continue
		}
		flow := flows[target]
		if flow == nil && len(flows) < maxTargets {
			if flow, err = open(last, template, target); err != nil {
				log.Printf("%s: %v", target, err)
				continue
			}
			flows[target] = flow
			back.Add(1)
			go func(flow *masque.Conn, header []byte) {
				defer back.Done()
				answers(socket, client, flow, header)
			}(flow, append([]byte(nil), header...))
		}
		if flow != nil {
			// What is too large for the path is lost, as on any other.
			flow.WriteTo(payload, nil)
		}
	}
}

func answers(socket *net.UDPConn, client net.Addr, flow *masque.Conn, header []byte) {
	buffer := make([]byte, len(header)+65536)
	copy(buffer, header)
	for {
		n, _, err := flow.ReadFrom(buffer[len(header):])
		if err != nil {
			return
		}
		socket.WriteTo(buffer[:len(header)+n], client)
	}
}

// RFC 1928 section 7: the target, the header as it is, and what is behind it.
func split(datagram []byte) (target string, header, payload []byte, ok bool) {
	if len(datagram) < 7 || datagram[2] != 0 {
		return "", nil, nil, false
	}
	at, host := 0, ""
	switch kind := datagram[3]; {
	case kind == 1 && len(datagram) >= 10:
		at, host = 8, net.IP(datagram[4:8]).String()
	case kind == 4 && len(datagram) >= 22:
		at, host = 20, net.IP(datagram[4:20]).String()
	case kind == 3 && len(datagram) >= 7+int(datagram[4]):
		at = 5 + int(datagram[4])
		host = string(datagram[5:at])
	default:
		return "", nil, nil, false
	}
	port := int(datagram[at])<<8 | int(datagram[at+1])
	return net.JoinHostPort(host, fmt.Sprint(port)), datagram[:at+2], datagram[at+2:], true
}
