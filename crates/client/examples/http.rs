//! hyper's client with every connection over relays: `cargo run -p hoplite-client --features hyper --example http -- http://HOST/ URL…`. For `https` put
//! a TLS connector around this one.

#![expect(clippy::print_stdout, reason = "an example")]

use bytes::Bytes;
use hoplite_client::Client;
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy, rt::TokioExecutor};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let page = arguments
        .next()
        .ok_or("expected an address and relays' URLs")?;
    let mut builder = Client::builder();
    for url in arguments {
        builder = builder.relay(&url)?;
    }
    let connector = builder.build()?.connector();
    let web = legacy::Client::builder(TokioExecutor::new()).build::<_, Empty<Bytes>>(connector);
    let answer = web.get(page.parse()?).await?;
    println!("{}", answer.status());
    let body = answer.into_body().collect().await?.to_bytes();
    println!("{}", String::from_utf8_lossy(&body));
    Ok(())
}
