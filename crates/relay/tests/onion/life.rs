//! Relays that die, drain, and change their keys, under circuits.

use std::time::Duration;

use hoplite_channel::How;
use hoplite_crypto::onion::{RelayKeys, Secrets};
use hoplite_overlay::{ErrorKind, Terms};
use hoplite_testing::{
    relay::{identity, number},
    soon, targets,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    circuits, client, config, echo, echoes, known, now, open, path, refused, relays, start_as,
    token,
};

#[tokio::test]
async fn a_relay_that_dies_ends_its_circuits_and_no_others() {
    for how in [How::Quic, How::Tls] {
        let [first, second, third] = relays(how);
        let target = targets::tcp_echo().await;
        let long = client(path([&first, &second, &third]), how);
        let short = client(vec![known("r1", &first), known("r3", &third)], how);
        let mut dying = open(&long, target, &Terms::default()).await.expect("opens");
        let mut living = open(&short, target, &Terms::default())
            .await
            .expect("opens");
        for stream in [&mut dying, &mut living] {
            stream.write_all(b"before").await.expect("taken");
            soon(stream.read_exact(&mut [0; 6])).await.expect("echoed");
        }
        drop(second);
        let died = soon(dying.read_exact(&mut [0; 1])).await.expect_err("dead");
        let died = hoplite_overlay::Error::from_io(&died).expect("told why");
        assert_eq!(died.kind(), ErrorKind::PathFailed, "{died}");
        echo(living, 100_000).await;
        let error = refused(&long, target).await;
        assert_eq!(error.kind(), ErrorKind::PathFailed, "{error}");
        assert!(
            error.to_string().contains("r2"),
            "it names the relay: {error}"
        );
        echoes(&short, &token(2), 1000).await;
    }
}

#[tokio::test]
async fn a_first_relay_that_dies_is_named() {
    let [first, second] = relays(How::Quic);
    let onion = client(path([&first, &second]), How::Quic);
    let target = targets::tcp_echo().await;
    let mut stream = open(&onion, target, &Terms::default())
        .await
        .expect("opens");
    drop(first);
    let died = soon(stream.read_exact(&mut [0; 1]))
        .await
        .expect_err("dead");
    assert!(hoplite_overlay::Error::from_io(&died).is_some(), "{died}");
    let error = refused(&onion, target).await;
    assert_eq!(error.kind(), ErrorKind::EntryUnreachable, "{error}");
    assert!(
        error.to_string().contains("r1"),
        "it names the relay: {error}"
    );
}

#[tokio::test]
async fn a_drain_waits_for_circuits_and_takes_no_new_ones() {
    for how in [How::Quic, How::Tls] {
        let [first, middle, last] = relays(how);
        let onion = client(path([&first, &middle, &last]), how);
        let target = targets::tcp_echo().await;
        let stream = open(&onion, target, &Terms::default())
            .await
            .expect("opens");
        let drained = tokio::spawn(middle.drain(Duration::from_secs(60)));
        let mut n = 0;
        let refused = loop {
            n += 1;
            match open(&onion, target, &token(n)).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        };
        // The relay before it sends on no reason.
        assert_eq!(refused.kind(), ErrorKind::PathFailed, "{refused}");
        assert!(refused.to_string().contains("hop 2 of 3"), "{refused}");
        assert!(n < 64, "{n} circuits: another limit was reached");
        echo(stream, 100_000).await;
        drop(onion);
        assert!(
            soon(drained).await.expect("no panic"),
            "everything ended in order"
        );
    }
}

#[tokio::test]
async fn a_drain_closes_circuits_that_are_left_at_its_end() {
    let [first, middle, last] = relays(How::Quic);
    let onion = client(path([&first, &middle, &last]), How::Quic);
    let target = targets::tcp_echo().await;
    let mut stream = open(&onion, target, &Terms::default())
        .await
        .expect("opens");
    assert!(!soon(middle.drain(Duration::from_millis(50))).await);
    let ended = soon(stream.read_exact(&mut [0; 1])).await;
    assert!(ended.is_err(), "closed");
}

#[tokio::test]
async fn a_rotated_onion_key_is_taken_beside_the_last_one() {
    let first = Secrets::fresh(now()).expect("made");
    let relay = start_as(&config(), &first);
    let old = path([&relay]);
    echoes(&client(old.clone(), How::Quic), &Terms::default(), 1000).await;
    let second = first.rotated(now()).expect("made");
    let rekey = relay.rekey().expect("circuits are served");
    rekey.replace(circuits(&second).keys);
    let new = path([&relay]);
    assert!(new[0].keys != old[0].keys, "another key is told");
    assert!(new[0].keys == RelayKeys::from(second.public().expect("a key")));
    for wanted in [&old, &new] {
        echoes(&client(wanted.clone(), How::Quic), &Terms::default(), 1000).await;
    }
    rekey.replace(circuits(&second.retired()).keys);
    let error = refused(&client(old, How::Quic), targets::tcp_echo().await).await;
    assert_eq!(error.kind(), ErrorKind::EntryUnreachable, "{error}");
    echoes(&client(new, How::Quic), &Terms::default(), 1000).await;
}

#[tokio::test]
async fn a_reloaded_certificate_is_the_one_that_channels_prove() {
    let [relay] = relays(How::Raced);
    relay
        .reload(&config().auth, Some(&identity()))
        .expect("reloaded");
    for how in [How::Quic, How::Tls] {
        echoes(&client(path([&relay]), how), &Terms::default(), 1000).await;
    }
}

#[tokio::test]
async fn circuits_that_have_ended_are_forgotten() {
    let relays: [_; 3] = relays(How::Quic);
    let onion = client(path(&relays), How::Quic);
    echoes(&onion, &Terms::default(), 1000).await;
    drop(onion);
    let gone = async {
        for relay in &relays {
            while number(relay, "hoplite_relay_onion_circuits_open") != 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    soon(gone).await;
}
