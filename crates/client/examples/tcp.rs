//! A page by hand: `cargo run -p hoplite-client --example tcp -- HOST:PORT URL…`, with the URLs of one to four relays, the first one first.

#![expect(clippy::print_stdout, reason = "an example")]

use hoplite_client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let target = arguments
        .next()
        .ok_or("expected HOST:PORT and relays' URLs")?;
    let mut builder = Client::builder();
    for url in arguments {
        builder = builder.relay(&url)?;
    }
    let client = builder.build()?;
    let mut stream = client.connect(target.as_str()).await?;
    let request = format!("GET / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page).await?;
    println!("{}", String::from_utf8_lossy(&page));
    Ok(())
}
