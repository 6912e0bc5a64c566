// An independent CONNECT-IP client (connect-ip-go on quic-go) against a relay. Run by ../connect_ip_go_test.py.
//
// usage: connect_ip_go CA TEMPLATE TOKEN    prints what the relay tells of addresses, routes, nameservers and NAT64, a word and a value a line
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	connectip "github.com/quic-go/connect-ip-go"
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
	if len(args) != 3 {
		return errors.New("usage: connect_ip_go CA TEMPLATE TOKEN")
	}
	pem, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	template, err := uritemplate.New(args[1])
	if err != nil {
		return err
	}
	request, err := connectip.NewRequest(ctx, template)
	if err != nil {
		return err
	}
	request.Header().Set("Proxy-Authorization", "Bearer "+args[2])
	transport := connectip.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, NextProtos: []string{http3.NextProtoH3}}}
	conn, _, err := transport.Dial(request)
	if err != nil {
		return err
	}
	defer conn.Close()
	return tell(ctx, conn)
}

func tell(ctx context.Context, conn *connectip.Conn) error {
	addresses, err := conn.ReceiveAddressAssignment(ctx)
	if err != nil {
		return err
	}
	fmt.Println("addresses", len(addresses))
	routes, err := conn.Routes(ctx)
	if err != nil {
		return err
	}
	fmt.Println("routes", len(routes))
	configurations, err := conn.ReceiveDNSConfiguration(ctx)
	if err != nil {
		return err
	}
	for _, configuration := range configurations {
		for _, nameserver := range configuration.Nameservers {
			for _, address := range append(nameserver.IPv4Addresses, nameserver.IPv6Addresses...) {
				fmt.Println("nameserver", address)
			}
		}
		fmt.Printf("internal %q\n", configuration.InternalDomains)
	}
	prefixes, err := conn.ReceivePREF64Configuration(ctx)
	if err != nil {
		return err
	}
	for _, prefix := range prefixes {
		fmt.Println("nat64", prefix)
	}
	return back(ctx, conn)
}

// The relay passes over what a client tells, and the flow goes on: it answers a request for addresses behind it.
func back(ctx context.Context, conn *connectip.Conn) error {
	nameserver := connectip.DNSNameserver{ServicePriority: 1, IPv4Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	told := []connectip.DNSConfiguration{{Nameservers: []connectip.DNSNameserver{nameserver}, InternalDomains: []string{"corp.test"}}}
	if err := conn.SendDNSConfiguration(told); err != nil {
		return err
	}
	if err := conn.SendPREF64Configuration([]netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}); err != nil {
		return err
	}
	if _, err := conn.RequestAddresses([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/32")}); err != nil {
		return err
	}
	if _, err := conn.ReceiveAddressAssignment(ctx); err != nil {
		return err
	}
	fmt.Println("answered", 1)
	return nil
}
