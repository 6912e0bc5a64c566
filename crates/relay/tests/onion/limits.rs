//! How much of it one client may have, and what a configuration must say.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use bytes::BufMut;
use hoplite_channel::{Channel, How};
use hoplite_onion::path::Relay as Known;
use hoplite_overlay::{Overlay, Reason, Terms};
use hoplite_relay::{
    Config, Handle, Relay,
    config::{LinkKind, ResolverChoice, TokenEntry},
};
use hoplite_testing::{
    dns::Dns,
    relay::{identity, metric, number, until_metric},
    soon, targets,
};
use hoplite_wire::{
    Target,
    cell::{BODY, Cell, Command},
};
use tokio::sync::mpsc;

use crate::{
    carriers,
    support::{
        bare, bare_at, client, config, echo, echoes, known, open, path, refused, relay, token,
    },
};

#[tokio::test]
async fn a_client_has_no_more_circuits_with_streams_than_requests() {
    // A circuit is one, and each stream is.
    let only = relay(|config| config.limits.requests_per_client = 4);
    let onion = client(path([&only]), How::Tls);
    let target = targets::tcp_echo().await;
    let mut streams = Vec::new();
    for n in 0..2 {
        streams.push(open(&onion, target, &token(n)).await.expect("opens"));
    }
    let error = open(&onion, target, &token(3)).await.expect_err("too many");
    assert_eq!(error.reason(), Some(Reason::Limit), "{error}");
    assert_eq!(
        number(
            &only,
            "hoplite_relay_limit_refusals_total{limit=\"circuits\"}"
        ),
        1
    );
}

#[tokio::test]
async fn a_client_has_no_more_streams_than_its_address_and_its_channel_may_have() {
    for of_channel in [true, false] {
        let only = relay(|config| {
            if of_channel {
                config.onion.streams_per_client = 6;
            } else {
                // Two circuits, and their streams.
                config.limits.requests_per_client = 2 + 6;
            }
        });
        let onion = client(path([&only]), How::Quic);
        let target = targets::tcp_echo().await;
        let mut streams = Vec::new();
        for n in 0..6 {
            streams.push(open(&onion, target, &token(n % 2)).await.expect("opens"));
        }
        let error = open(&onion, target, &token(0)).await.expect_err("too many");
        assert_eq!(error.reason(), Some(Reason::Limit), "{error}");
        let refused = "hoplite_relay_limit_refusals_total{limit=\"streams\"}";
        assert_eq!(number(&only, refused), 1);
        // Whose end the relay has heard of makes room.
        drop(streams.pop());
        while open(&onion, target, &token(1)).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn names_are_looked_up_for_circuits_no_faster_than_for_any_client() {
    let only = relay(|config| config.limits.queries_per_client = 3);
    let onion = client(path([&only]), How::Quic);
    let port = targets::tcp_echo().await.port();
    let echo: Target = format!("localhost:{port}").parse().expect("valid");
    let asked = (0..40).map(|n| {
        let (onion, echo) = (&onion, &echo);
        async move {
            let terms = Terms::default();
            match n % 2 {
                0 => open(onion, echo.clone(), &terms).await.map(drop),
                _ => onion.resolve("localhost", &terms).await.map(drop),
            }
        }
    });
    let answered = futures_util::future::join_all(asked).await;
    let (served, refused): (Vec<_>, Vec<_>) = answered.into_iter().partition(Result::is_ok);
    // Of each a second's worth at once; the rest would take five seconds more.
    assert!((2..20).contains(&served.len()), "{}", served.len());
    for error in refused {
        let reason = error.expect_err("refused").reason();
        assert!(matches!(
            reason,
            Some(Reason::Limit | Reason::ResolverFailed)
        ));
    }
}

#[tokio::test]
async fn one_address_holds_not_all_look_ups_of_circuits() {
    let dns = Dns::start(&[("honest.test", Ipv4Addr::LOCALHOST)]).await;
    let only = relay(|config| {
        config.listen.push((Ipv6Addr::LOCALHOST, 0).into());
        config.limits.lookups = 16;
        config.egress.resolver = ResolverChoice::Servers(vec![dns.address]);
    });
    let (greedy, honest) = (known("r", &only), known("r", &only));
    let at = |mut relay: Known, is_v6| {
        relay.addresses.retain(|address| address.is_ipv6() == is_v6);
        client(vec![relay], How::Quic)
    };
    let (greedy, honest) = (Arc::new(at(greedy, false)), at(honest, true));
    let (tell, mut refused) = mpsc::unbounded_channel();
    for n in 0..64 {
        let (greedy, tell) = (Arc::clone(&greedy), tell.clone());
        let name = format!("silent{n}.test");
        tokio::spawn(async move {
            greedy
                .resolve(&name, &token(n % 4))
                .await
                .expect_err("silence");
            tell.send(()).ok();
        });
    }
    for _ in 0..32 {
        soon(refused.recv()).await.expect("told");
    }
    let found = soon(honest.resolve("honest.test", &Terms::default())).await;
    assert_eq!(found.expect("a place"), [IpAddr::from([127, 0, 0, 1])]);
}

#[tokio::test]
async fn all_clients_together_have_no_more_circuits_than_the_relay() {
    let only = relay(|config| config.onion.circuits = 1);
    let target = targets::tcp_echo().await;
    let first = client(path([&only]), How::Quic);
    open(&first, target, &Terms::default())
        .await
        .expect("opens");
    let second = client(path([&only]), How::Tls);
    let error = refused(&second, target).await;
    assert_eq!(error.reason(), Some(Reason::Limit), "{error}");
}

/// A relay that can be reached at two addresses, by two who count as two.
fn at_two_addresses(change: impl FnOnce(&mut Config)) -> (Handle, [Known; 2]) {
    let both = relay(|config| {
        config.listen.push("[::1]:0".parse().expect("address"));
        change(config);
    });
    let at = |n: usize| Known {
        addresses: vec![both.addresses()[n]],
        ..known("first", &both)
    };
    let ways = [at(0), at(1)];
    (both, ways)
}

/// Circuits without end that carry nothing, until the relay refuses; then another client is served all the same.
async fn hog_and_client(ways: [Known; 2], behind: Option<Known>, most: usize) {
    let [hog, honest] = ways.map(|first| {
        let path = [Some(first), behind.clone()];
        client(path.into_iter().flatten().collect(), How::Quic)
    });
    let target = targets::tcp_echo().await;
    let mut held = Vec::new();
    let refused = loop {
        let n = u32::try_from(held.len()).expect("few");
        match open(&hog, target, &token(n)).await {
            Ok(stream) => held.push(stream),
            Err(error) => break error,
        }
        assert!(held.len() <= most, "more than there are");
    };
    assert!(held.len() + most / 8 >= most, "{}: {refused}", held.len());
    for n in 0..4 {
        echoes(&honest, &token(n), 1000).await;
    }
}

#[tokio::test]
async fn idle_circuits_of_one_address_do_not_block_a_pair_of_relays() {
    for how in [How::Quic, How::Tls] {
        let (_first, ways) = at_two_addresses(|config| {
            config.onion.circuits_per_relay = 32;
            config.onion.channels = carriers(how);
            config.onion.channels.push(LinkKind::Quic);
        });
        let second = relay(|config| {
            config.onion.circuits_per_relay = 32;
            config.onion.channels = carriers(how);
        });
        hog_and_client(ways, Some(known("second", &second)), 32).await;
    }
}

#[tokio::test]
async fn one_address_does_not_take_all_circuits_of_a_relay() {
    let (_only, ways) = at_two_addresses(|config| config.onion.circuits = 32);
    hog_and_client(ways, None, 32).await;
}

#[tokio::test]
async fn one_address_has_so_many_circuits_over_all_its_channels() {
    let only = relay(|config| config.onion.circuits_per_address = 3);
    let target = targets::tcp_echo().await;
    let clients = [How::Quic, How::Tls].map(|how| client(path([&only]), how));
    let mut held = Vec::new();
    for (n, onion) in [(1, &clients[0]), (1, &clients[1]), (2, &clients[1])] {
        held.push(open(onion, target, &token(n)).await.expect("opens"));
    }
    for onion in &clients {
        let error = open(onion, target, &token(9)).await.expect_err("too many");
        assert_eq!(error.reason(), Some(Reason::Limit), "{error}");
    }
}

/// Channels between relays last for days; the list changes each hour.
#[tokio::test]
async fn a_relay_counts_as_one_while_the_list_has_it_on_the_channel_that_it_has() {
    let first = relay(|_| ());
    let second = relay(|config| config.onion.circuits_per_address = 2);
    let onion = client(path([&first, &second]), How::Tls);
    let target = targets::tcp_echo().await;
    let mut held = Vec::new();
    for n in 1..=2 {
        held.push(open(&onion, target, &token(n)).await.expect("opens"));
    }
    let stranger = open(&onion, target, &token(3)).await;
    stranger.expect_err("too many");
    let listed = second.listed().expect("it serves circuits");
    let identity = known("first", &first).keys.ed25519;
    listed.replace([(identity, first.addresses().to_vec())]);
    for n in 4..=6 {
        held.push(open(&onion, target, &token(n)).await.expect("opens"));
    }
    listed.replace([]);
    let stranger = open(&onion, target, &token(7)).await;
    stranger.expect_err("two are taken by the address already");
}

#[tokio::test]
async fn a_client_has_no_more_channels_than_connections() {
    let only = relay(|config| config.limits.connections_per_client = 1);
    let target = targets::tcp_echo().await;
    let first = client(path([&only]), How::Tls);
    open(&first, target, &Terms::default())
        .await
        .expect("opens");
    refused(&client(path([&only]), How::Tls), target).await;
    refused(&client(path([&only]), How::Quic), target).await;
}

#[tokio::test]
async fn channels_without_circuits_are_closed_after_their_time_and_those_with_some_are_not() {
    let only = relay(|config| config.limits.first_request = Duration::from_secs(2));
    let target = targets::tcp_echo().await;
    let busy = client(path([&only]), How::Tls);
    let stream = open(&busy, target, &Terms::default()).await;
    let stream = stream.expect("opens");
    for how in [How::Quic, How::Tls] {
        let held = bare(&only, how).await.expect("made");
        soon(held.closed()).await;
    }
    let ended = "hoplite_relay_connections_ended_total{cause=\"no_request\"}";
    assert_eq!(number(&only, ended), 2);
    echo(stream, 10_000).await;
}

#[tokio::test]
async fn channels_over_quic_prove_their_address_where_the_relay_asks_for_it() {
    let relays = [(); 2].map(|()| relay(|config| config.limits.unvalidated_handshakes = 0));
    let target = targets::tcp_echo().await;
    let onion = client(path(&relays), How::Quic);
    let stream = open(&onion, target, &Terms::default()).await;
    echo(stream.expect("opens"), 10_000).await;
    for relay in &relays {
        assert!(number(relay, "hoplite_relay_retries_total") > 0);
    }
}

#[tokio::test]
async fn many_channels_without_circuits_keep_no_client_out() {
    let only = relay(|config| {
        config.limits.connections = 8;
        config.limits.connections_per_client = 8;
        config.limits.waiting = 6;
        config.limits.waiting_per_client = 6;
    });
    let target = targets::tcp_echo().await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.extend(bare(&only, How::Quic).await.ok());
        held.extend(bare(&only, How::Tls).await.ok());
    }
    let honest = client(path([&only]), How::Tls);
    let stream = open(&honest, target, &Terms::default()).await;
    let stream = stream.expect("opens");
    for _ in 0..4 {
        held.extend(bare(&only, How::Tls).await.ok());
    }
    echo(stream, 10_000).await;
}

#[tokio::test]
async fn bandwidth_of_a_client_is_kept_on_circuits_too() {
    let rate = 4_000_000;
    let only = relay(|config| config.limits.bandwidth_per_client = rate);
    let onion = client(path([&only]), How::Quic);
    let bytes = 500_000;
    let begun = std::time::Instant::now();
    echoes(&onion, &Terms::default(), bytes).await;
    // Both directions: twice the bytes; a tenth of a second comes at once.
    let least = 2.0 * 8.0 * bytes as f64 / rate as f64 - 0.3;
    let took = begun.elapsed().as_secs_f64();
    assert!(
        took >= least,
        "{took} s, at least {least} s were to be expected"
    );
}

#[tokio::test]
async fn tokens_and_circuits_for_everybody_must_be_meant() {
    let mut config = config();
    config.auth.token.push(TokenEntry {
        token: Some("secret".to_owned().into()),
        ..TokenEntry::default()
    });
    let error = Relay::start(&config, &identity()).expect_err("not meant");
    assert!(error.to_string().starts_with("onion.open: "), "{error}");
    config.onion.open = true;
    let open = crate::support::start(&config);
    echoes(&client(path([&open]), How::Quic), &Terms::default(), 1000).await;
}

#[tokio::test]
async fn a_relay_without_an_onion_key_does_not_start_with_circuits() {
    let error = Relay::start(&config(), &identity()).expect_err("no key");
    assert!(error.to_string().starts_with("onion.enabled: "), "{error}");
}

/// Opens a circuit and writes into it whatever goes.
async fn stuff(channel: Channel, n: u8) {
    let mut circuit = channel.open().await.expect("opened");
    let cell = |command| Cell::new(circuit.id, command, |body| body.put_bytes(n, BODY));
    let [first, more] = [Command::CREATE_FAST, Command::RELAY].map(|one| cell(one).expect("fits"));
    circuit.sender.send(first).expect("there is room");
    while circuit.sender.ready().await.is_ok() && circuit.sender.send(more.clone()).is_ok() {}
}

/// Whether they are in order, or come behind a gap, where nobody can read them.
#[tokio::test]
async fn what_strangers_may_stuff_into_circuits_that_nobody_reads_counts_and_others_are_let_in() {
    const BUDGET: u64 = 16 << 20;
    let only = relay(|config| {
        config.listen.push((Ipv6Addr::LOCALHOST, 0).into());
        config.limits.memory = BUDGET;
        // The relay reads what begins a circuit, and nothing more for minutes.
        config.limits.bandwidth_per_client = 8;
    });
    let mut channels = Vec::new();
    for _ in 0..8 {
        channels.extend(bare(&only, How::Quic).await.ok());
    }
    let at_rest = metric(&only, "memory_promised_bytes");
    for (n, channel) in (0..).zip(channels.iter().flat_map(|channel| [channel; 4])) {
        tokio::spawn(stuff(channel.clone(), n));
    }
    until_metric(&only, "memory_promised_bytes", |bytes| {
        assert!(bytes <= BUDGET as f64);
        bytes > at_rest + 4e6
    })
    .await;
    let other = bare_at(only.addresses()[1], How::Quic)
        .await
        .expect("let in");
    assert!(other.is_open());
    channels.iter().for_each(Channel::close);
    until_metric(&only, "memory_promised_bytes", |bytes| bytes < 1e6).await;
}
