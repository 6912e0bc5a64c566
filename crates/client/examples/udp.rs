//! A datagram to a server that answers, such as one of NTP or DNS: `cargo run -p hoplite-client --example udp -- HOST:PORT TEXT URL…`.

#![expect(clippy::print_stdout, reason = "an example")]

use std::time::Duration;

use hoplite_client::Client;
use tokio::time::timeout;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "expected HOST:PORT, a text and relays' URLs";
    let target = arguments.next().ok_or(usage)?;
    let text = arguments.next().ok_or(usage)?;
    let mut builder = Client::builder();
    for url in arguments {
        builder = builder.relay(&url)?;
    }
    let flow = builder.build()?.udp(target.as_str()).await?;
    let mut answer = [0; 1500];
    // Datagrams may be lost: who wants an answer asks again.
    for _ in 0..5 {
        flow.send(text.as_bytes()).await?;
        if let Ok(received) = timeout(Duration::from_secs(1), flow.recv(&mut answer)).await {
            let first = &answer[..received?.segment];
            println!("{}", String::from_utf8_lossy(first));
            return Ok(());
        }
    }
    Err("no answer".into())
}
