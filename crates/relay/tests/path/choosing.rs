//! Paths that are chosen, and chosen again when a relay fails.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hoplite_masque::{Choose, Config, Paths, TakenBack};
use hoplite_overlay::{Overlay, Terms};
use hoplite_testing::{
    path::{direct, known},
    relay::relays,
    targets,
};

/// The first two of three that have not failed.
fn first_two() -> Choose {
    Box::new(|failed, _| {
        Some(
            (0..3)
                .filter(|place| !failed.contains(place))
                .take(2)
                .collect(),
        )
    })
}

#[tokio::test]
async fn a_relay_that_fails_is_replaced_by_another() {
    let relays = relays(3);
    let names = ["amber", "birch", "cedar"];
    let named = names.iter().zip(&relays);
    let choice = named.map(|(name, relay)| known(name, relay));
    let mut client = Config::default();
    client.link.broken_after = Duration::from_secs(1);
    let paths = Paths::new(choice.collect(), direct(), &Arc::new(client), first_two());
    let paths = paths.expect("a path");

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("bound");
    let target = listener.local_addr().expect("bound").into();
    let before = paths.current();
    paths
        .open_stream(&target, &Terms::default())
        .await
        .expect("opened");

    // Amber and birch are on the path.
    let mut relays = relays.into_iter();
    relays.next().expect("amber").drain(Duration::ZERO).await;
    let terms = Terms::default().within(Duration::from_secs(30));
    paths
        .open_stream(&target, &terms)
        .await
        .expect("opened over another path");
    assert!(
        !paths.current().is_same(&before),
        "the path was not replaced"
    );
}

#[tokio::test]
async fn a_path_stays_while_its_relays_are_listed_and_is_replaced_when_one_is_not() {
    let relays = relays(3);
    let all: Vec<_> = ["amber", "birch", "cedar"]
        .iter()
        .zip(&relays)
        .map(|(name, relay)| known(name, relay))
        .collect();
    let last_two = |count: usize| Box::new(move |_: &[usize], _| Some(vec![count - 2, count - 1]));
    let client = Arc::new(Config::default());
    let paths = Paths::new(all.clone(), direct(), &client, last_two(3)).expect("a path");
    let before = paths.current();
    let mut turned = all.clone();
    turned.reverse();
    paths.renew(turned, last_two(3));
    assert!(
        paths.current().is_same(&before),
        "both relays are still listed"
    );
    paths.renew(all.iter().take(2).cloned().collect(), last_two(2));
    let after = paths.current();
    let names: Vec<_> = after
        .hops()
        .iter()
        .map(|hop| hop.name().to_owned())
        .collect();
    assert_eq!(names, ["amber", "birch"]);
}

#[tokio::test]
async fn a_path_that_stayed_as_one_list_allowed_no_other_goes_with_the_next_list() {
    let relays = relays(3);
    let all: Vec<_> = ["amber", "birch", "cedar"]
        .iter()
        .zip(&relays)
        .map(|(name, relay)| known(name, relay))
        .collect();
    let two = |first: usize| -> Choose { Box::new(move |_, _| Some(vec![first, first + 1])) };
    let client = Arc::new(Config::default());
    let paths = Paths::new(all.clone(), direct(), &client, two(1)).expect("a path");
    let before = paths.current();
    paths.renew(all[..1].to_vec(), Box::new(|_, _| None));
    assert!(paths.current().is_same(&before), "there is no other");
    paths.renew(all[..2].to_vec(), two(0));
    let after = paths.current();
    let names: Vec<_> = after.hops().iter().map(|hop| hop.name()).collect();
    assert_eq!(names, ["amber", "birch"]);
}

fn names(paths: &Paths) -> Vec<String> {
    let path = paths.current();
    path.hops()
        .iter()
        .map(|hop| hop.name().to_owned())
        .collect()
}

#[tokio::test]
async fn a_path_goes_back_to_a_first_relay_that_is_there_again_and_not_to_one_that_is_not() {
    let relays = relays(3);
    let named = ["amber", "birch", "cedar"].iter().zip(&relays);
    let mut all: Vec<_> = named.map(|(name, relay)| known(name, relay)).collect();
    let mut absent = known("dogwood", &relays[0]);
    absent.peer.address = "127.0.0.1:1".parse().expect("an address");
    all.push(absent);
    let wanted = Arc::new(AtomicUsize::new(2));
    let chosen = Arc::clone(&wanted);
    let choose: Choose = Box::new(move |_, _| Some(vec![chosen.load(Ordering::Relaxed), 1]));
    let mut client = Config::default();
    client.link.handshake = Duration::from_secs(1);
    let paths = Paths::new(all, direct(), &Arc::new(client), choose).expect("a path");
    let target = targets::tcp_echo().await.into();
    paths
        .open_stream(&target, &Terms::default())
        .await
        .expect("opened");
    wanted.store(3, Ordering::Relaxed);
    assert_eq!(paths.take_back(3).await, TakenBack::Away);
    assert_eq!(paths.take_back(0).await, TakenBack::NotChosen);
    assert_eq!(names(&paths), ["cedar", "birch"]);
    wanted.store(0, Ordering::Relaxed);
    assert_eq!(paths.take_back(0).await, TakenBack::Taken);
    assert_eq!(names(&paths), ["amber", "birch"]);
    assert_eq!(paths.first().expect("listed").peer.name, "amber");
    paths
        .open_stream(&target, &Terms::default())
        .await
        .expect("opened");
}

/// The first relay lets the client reach its partner alone: it is as if the others were not there.
#[tokio::test]
async fn a_first_relay_behind_which_all_fail_but_its_partner_is_given_up_before_the_partner_comes()
{
    let relays = relays(2);
    let named = |name, relay| known(name, &relays[relay]);
    let mut all = vec![named("amber", 0)];
    for name in ["birch", "cedar", "dogwood", "elm", "fir"] {
        let mut absent = named(name, 1);
        absent.peer.address = "127.0.0.1:1".parse().expect("an address");
        all.push(absent);
    }
    all.extend([named("partner", 1), named("hazel", 0), named("iris", 1)]);
    let choose: Choose = Box::new(|failed, _| {
        let second = (1..7).find(|place| !failed.contains(place))?;
        let blamed = failed.contains(&0);
        Some(if blamed { vec![7, 8] } else { vec![0, second] })
    });
    let mut client = Config::default();
    client.link.handshake = Duration::from_secs(1);
    let paths = Paths::new(all, direct(), &Arc::new(client), choose).expect("a path");
    let target = targets::tcp_echo().await.into();
    while paths.open_stream(&target, &Terms::default()).await.is_err() {}
    let path = paths.current();
    let names: Vec<_> = path.hops().iter().map(|hop| hop.name()).collect();
    assert_eq!(names, ["hazel", "iris"]);
}
