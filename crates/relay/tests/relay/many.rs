//! Many tunnels on one connection.

use futures_util::future::join_all;
use hoplite_testing::{relay::relay, targets};

use crate::support::{Tunnel, connect, udp};

#[tokio::test]
async fn many_tunnels_on_one_connection_all_work_and_all_end() {
    let relay = relay(|_| ());
    let client = connect(&relay).await;
    let echo = targets::udp_echo().await;
    let asked = join_all((0..300).map(|_| client.ask(udp(echo)))).await;
    let mut tunnels: Vec<Tunnel> = asked
        .into_iter()
        .map(|(exchange, answer)| {
            assert_eq!(answer.status, 200);
            Tunnel::new(exchange)
        })
        .collect();
    let open = |count| format!("tunnels_open{{method=\"connect_udp\"}} {count}\n");
    assert!(relay.metrics().text().contains(&open(300)));
    for (index, tunnel) in tunnels.iter_mut().enumerate() {
        let payload = index.to_be_bytes();
        assert_eq!(tunnel.echo(&payload).await, &payload[..]);
    }
    drop(tunnels);
    while !relay.metrics().text().contains(&open(0)) {
        tokio::task::yield_now().await;
    }
}
