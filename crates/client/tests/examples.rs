//! The examples as a user runs them. `cargo test` builds them beside the tests.

use std::{net::SocketAddr, path::PathBuf, process::Output};

use hoplite_testing::{
    relay::{relays, url},
    targets,
};
use tokio::task::spawn_blocking;

/// Runs an example with these arguments.
async fn run(name: &str, arguments: Vec<String>) -> Output {
    let test = std::env::current_exe().expect("a path");
    // target/PROFILE/deps/TEST, target/PROFILE/examples/NAME.
    let profile = test
        .ancestors()
        .nth(2)
        .map(PathBuf::from)
        .expect("a profile");
    let example = profile.join("examples").join(name);
    let run = move || std::process::Command::new(example).args(arguments).output();
    spawn_blocking(run).await.expect("no panic").expect("runs")
}

async fn answered(name: &str, first: Vec<String>) -> String {
    let relays = relays(2);
    let [one, other] =
        [("ingress", 0), ("egress", 1)].map(|(roles, place)| url(&relays[place], roles));
    let arguments = [first, vec![one, other]].concat();
    let output = run(name, arguments).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{name}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn text(address: SocketAddr) -> String {
    address.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_tcp_prints_a_page() {
    let server = targets::tcp_page("a page").await;
    let said = answered("tcp", vec![text(server)]).await;
    assert!(said.ends_with("a page\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_udp_prints_an_answer() {
    let server = targets::udp_echo().await;
    let said = answered("udp", vec![text(server), "who is there".into()]).await;
    assert_eq!(said, "who is there\n");
}

#[cfg(feature = "hyper")]
#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_http_prints_a_page() {
    let server = targets::tcp_page("a page").await;
    let said = answered("http", vec![format!("http://{server}/")]).await;
    assert_eq!(said, "200 OK\na page\n");
}
