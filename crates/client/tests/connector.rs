//! hyper's client over a relay.

use bytes::Bytes;
use hoplite_client::Client;
use hoplite_testing::{
    relay::{relays, url},
    targets,
};
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy, rt::TokioExecutor};

#[tokio::test]
async fn a_page_comes_through_the_relay() {
    let relays = relays(1);
    let client = Client::builder().relay(&url(&relays[0], "egress"));
    let client = client.expect("a URL");
    let client = client.build().expect("a client");
    let web = legacy::Client::builder(TokioExecutor::new());
    let web = web.build::<_, Empty<Bytes>>(client.connector());
    let server = targets::tcp_page("a page").await;
    let page = web.get(format!("http://{server}/").parse().expect("a URI"));
    let page = page.await.expect("answered").into_body().collect();
    assert_eq!(page.await.expect("read").to_bytes(), "a page");
    let secret = web.get(format!("https://{server}/").parse().expect("a URI"));
    let refused = secret.await.expect_err("nobody speaks TLS here");
    let mut sources =
        std::iter::successors(Some(&refused as &dyn std::error::Error), |it| it.source());
    let ours = sources.find_map(|it| it.downcast_ref::<hoplite_client::Error>());
    assert_eq!(
        ours.expect("ours").kind(),
        hoplite_client::ErrorKind::Unsupported
    );
    let wrapped = legacy::Client::builder(TokioExecutor::new());
    let wrapped = wrapped.build::<_, Empty<Bytes>>(client.connector().enforce_http(false));
    let page = wrapped.get(format!("https://{server}/").parse().expect("a URI"));
    assert!(
        page.await.is_ok(),
        "what is around it is asked for nothing here"
    );
}
