//! A DNS server on loopback with a fixed table; names that begin with `silent` are never answered.
//! RFC 1035 §4, as little of it as a stub resolver needs.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::net::UdpSocket;

/// The server; it lives as long as the runtime.
#[derive(Debug)]
pub struct Dns {
    /// Where it is asked.
    pub address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Dns {
    /// A server that knows these names, and no others.
    pub async fn start(table: &[(&str, Ipv4Addr)]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("bound");
        let address = socket.local_addr().expect("bound");
        let asked = Arc::new(AtomicUsize::new(0));
        let table = table.iter().map(|(name, ip)| ((*name).to_owned(), *ip));
        tokio::spawn(serve(socket, table.collect(), asked.clone()));
        Self { address, asked }
    }

    /// How many questions came.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn serve(socket: UdpSocket, table: HashMap<String, Ipv4Addr>, asked: Arc<AtomicUsize>) {
    let mut buffer = [0; 1500];
    while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
        asked.fetch_add(1, Ordering::SeqCst);
        if let Some(answer) = answer(&buffer[..len], &table) {
            socket.send_to(&answer, from).await.expect("sent");
        }
    }
}

fn answer(question: &[u8], table: &HashMap<String, Ipv4Addr>) -> Option<Vec<u8>> {
    let (name, end) = name(question)?;
    if name.starts_with("silent") {
        return None;
    }
    let address = table.get(&name);
    let is_a = question.get(end..end + 2)? == [0, 1];
    let code = if address.is_some() { 0 } else { 3 };
    let mut out = question.get(..end + 4)?.to_vec();
    out[2..4].copy_from_slice(&[0x81, 0x80 | code]);
    let record = address.filter(|_| is_a);
    out[6..12].copy_from_slice(&[0, u8::from(record.is_some()), 0, 0, 0, 0]);
    if let Some(ip) = record {
        out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        out.extend_from_slice(&ip.octets());
    }
    Some(out)
}

/// The first question's name, and where its type stands.
fn name(message: &[u8]) -> Option<(String, usize)> {
    let (mut at, mut labels) = (12, Vec::new());
    loop {
        let len = usize::from(*message.get(at)?);
        at += 1;
        if len == 0 {
            return Some((labels.join("."), at));
        }
        let label = message.get(at..at + len)?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += len;
    }
}
