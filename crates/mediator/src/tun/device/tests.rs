//! A pair of datagram sockets stands for the device: both keep the borders of what is written.

use std::os::unix::net::UnixDatagram;

use hoplite_wire::ip;

use super::*;
use crate::tun::port::{tcp_headers, udp_headers};

fn device(vnet_header: bool) -> (Device, UnixDatagram) {
    let (ours, kernel) = UnixDatagram::pair().expect("a pair");
    kernel.set_nonblocking(true).expect("an option");
    let device = Device::new(ours.into(), 1500, vnet_header).expect("a device");
    (device, kernel)
}

fn receive(kernel: &UnixDatagram) -> Vec<u8> {
    let mut buf = vec![0; 70_000];
    let len = kernel.recv(&mut buf).expect("something was written");
    buf.truncate(len);
    buf
}

fn headers(payload_len: usize) -> Vec<u8> {
    let mut headers = Vec::new();
    let (from, to) = ("203.0.113.9:53", "198.18.0.1:4000");
    let (from, to) = (from.parse().expect("valid"), to.parse().expect("valid"));
    udp_headers(&mut headers, from, to, payload_len);
    headers
}

#[tokio::test]
async fn a_packet_is_read_with_what_the_kernel_says_about_it() {
    let (device, kernel) = device(true);
    let header = Header {
        flags: 1,
        gso_type: 5,
        gso_size: 1200,
        ..Header::default()
    };
    let packet = [&header.octets()[..], &headers(3000), &[7; 3000]].concat();
    kernel.send(&packet).expect("sends");
    let _ready = device.readable().await.expect("readable");
    let incoming = device.read(&mut Pool::default()).expect("reads");
    let incoming = incoming.expect("understood");
    assert_eq!(incoming.octets[..], packet[10..]);
    assert!(incoming.checked);
    assert_eq!(incoming.segment, Some(1200));
    assert_eq!(device.counters().snapshot().octets_in, 3028);
}

#[tokio::test]
async fn what_nobody_agreed_on_is_no_packet() {
    let (device, kernel) = device(true);
    for octets in [&[0, 3, 0, 0, 1, 1, 0, 0, 0, 0, 0x45][..], &[0; 4]] {
        kernel.send(octets).expect("sends");
        let read = device.read(&mut Pool::default()).expect("reads");
        assert!(read.is_none());
    }
    let error = device.read(&mut Pool::default()).expect_err("nothing");
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_train_is_written_at_once_where_the_kernel_cuts_it() {
    let (device, kernel) = device(true);
    let (headers, payload) = (headers(3000), [&[1; 2000][..], &[2; 1000]]);
    assert!(device.send(Outgoing::udp(&headers, payload, Some(1200))));
    let written = receive(&kernel);
    let header = Header::parse(&written).expect("a header");
    assert_eq!((header.segment(), header.csum_start), (Some(1200), 20));
    assert_eq!(
        written[10..],
        [&headers[..], payload[0], payload[1]].concat()
    );
    assert!(kernel.recv(&mut [0; 9]).is_err());
}

#[tokio::test]
async fn without_the_header_packets_are_cut_and_their_checksums_finished() {
    let (device, kernel) = device(false);
    let headers = headers(3000);
    assert!(device.send(Outgoing::udp(&headers, [&[1; 3000], &[]], Some(1200))));
    for len in [1200, 1200, 600] {
        let written = receive(&kernel);
        let packet = ip::parse(&written).expect("a packet");
        assert!(packet.checksum_is_right());
        assert_eq!(packet.payload.len(), len + 8);
    }
    assert!(kernel.recv(&mut [0; 9]).is_err());
    let incoming = {
        kernel.send(&headers).expect("sends");
        device.read(&mut Pool::default())
    };
    let incoming = incoming.expect("reads").expect("understood");
    assert!(!incoming.checked, "somebody has to look");
}

#[tokio::test]
async fn a_full_queue_drops_and_counts() {
    let (device, _kernel) = device(true);
    let (from, to) = (
        "fd00::2".parse().expect("valid"),
        "fd00::1".parse().expect("valid"),
    );
    let (header, mut headers) = (ip::tcp::Header::default(), Vec::new());
    tcp_headers(&mut headers, from, to, &header, 30_000);
    let packet = Outgoing::tcp(&headers, [&[0; 30_000], &[]], Some(1440));
    let taken = (0..10_000).take_while(|_| device.send(packet)).count();
    assert!(taken > 0);
    let snapshot = device.counters().snapshot();
    assert_eq!(snapshot.packets_out, taken as u64);
    assert_eq!(snapshot.queue_full, 1);
}

#[tokio::test]
async fn a_device_that_is_gone_refuses_and_counts() {
    let (device, kernel) = device(true);
    drop(kernel);
    let headers = headers(0);
    assert!(!device.send(Outgoing::udp(&headers, [&[], &[]], None)));
    assert_eq!(device.counters().snapshot().refused, 1);
}
