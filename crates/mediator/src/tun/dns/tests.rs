//! What programs are told, and what the far end is asked.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use hoplite_overlay::Reason;
use hoplite_testing::Double;
use hoplite_wire::{Host, Target, ip};
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Notify, oneshot},
};

use super::*;
use crate::{
    tun::testing::{Bench, PROGRAM, TARGET, parsed, udp_packet},
    users::User,
};

const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 34));
/// The program that asks, and another one.
const HERE: User = User::local(1000, 1);
const OTHER: User = User::local(1001, 1);
const BOTH: Families = Families { v4: true, v6: true };

/// A far end that knows a few names, and none whose name begins with `no`.
#[derive(Debug, Default)]
struct Far {
    asked: Mutex<Vec<String>>,
    waiting: AtomicUsize,
    /// Names that begin with `late` are answered when this is told.
    go: Notify,
}

impl Far {
    fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }

    async fn answer(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let question = Question::read(message).expect("a question");
        assert_eq!(question.id(), 0, "an id tells queries apart");
        let text = question.text();
        self.asked.lock().push(text.clone());
        if text.starts_with("late") {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.go.notified().await;
        }
        match text.split('.').next().unwrap_or_default() {
            "broken" => Err(Error::new(ErrorKind::PathFailed, "a test")),
            "forbidden" => Err(Error::new(ErrorKind::Forbidden, "a test").because(Reason::Policy)),
            "other" => Ok(Question::new(&host("x.example"), RecordType::A).addresses([THERE], 1)),
            "no" => Ok(question.nothing(Code::NO_NAME, 9)),
            "inside" => Ok(question.addresses([Ipv4Addr::new(192, 168, 1, 1).into()], 9)),
            "pool" => Ok(question.addresses([Ipv4Addr::new(198, 18, 9, 9).into()], 9)),
            "many" => Ok(question.addresses((0..=255).map(|n| [93, 184, 216, n].into()), 9)),
            _ => Ok(question.addresses([THERE], 9)),
        }
    }
}

/// The overlay to it: queries are asked as they are, and DNS opens no flow.
fn overlay(far: &Arc<Far>) -> Double {
    let far = Arc::clone(far);
    Double::nothing().queries(move |_, message, _| {
        let far = Arc::clone(&far);
        Box::pin(async move { far.answer(message).await })
    })
}

struct TestResolver {
    server: Arc<Resolver>,
    names: Arc<Names>,
    far: Arc<Far>,
    counters: Arc<Counters>,
}

fn resolver_with(families: Families, text: &str) -> TestResolver {
    let config: config::Dns = toml::from_str(text).expect("parses");
    configured(&config, families)
}

/// One whose overlay leads to onion services.
fn onion_resolver(text: &str) -> TestResolver {
    let mut config: config::Dns = toml::from_str(text).expect("parses");
    config.onion_services = true;
    configured(&config, BOTH)
}

fn configured(config: &config::Dns, families: Families) -> TestResolver {
    config.check().expect("can be meant");
    let names = Arc::new(Names::new(&config.pools(), &[], config.mapping_limits()));
    let (far, counters) = (Arc::new(Far::default()), Arc::new(Counters::default()));
    let server = Resolver::new(
        config,
        families,
        &names,
        &(Arc::new(overlay(&far)) as _),
        &counters,
    );
    TestResolver {
        server,
        names,
        far,
        counters,
    }
}

fn resolver() -> TestResolver {
    resolver_with(BOTH, "")
}

fn host(name: &str) -> HostName {
    HostName::new(name).expect("valid")
}

/// What a program makes of a reply.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Addresses(Vec<IpAddr>),
    Nothing,
    Missing,
    Failed,
    Refused,
}

fn told(question: &Question, reply: &[u8]) -> Told {
    assert_eq!(reply[..2], question.id().to_be_bytes(), "another id");
    match question.heard(reply).expect("the answer to the question") {
        (Code::NO_ERROR, found) if found.is_empty() => Told::Nothing,
        (Code::NO_ERROR, found) => Told::Addresses(found),
        (Code::NO_NAME, _) => Told::Missing,
        (Code::FAILURE, _) => Told::Failed,
        (Code::REFUSED, _) => Told::Refused,
        (code, _) => unreachable!("{code:?}"),
    }
}

impl TestResolver {
    async fn reply(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.begin(query, HERE).await.ok()
    }

    /// A user asks, and does not wait yet.
    fn begin(&self, query: &[u8], user: User) -> oneshot::Receiver<Vec<u8>> {
        let (replied, reply) = oneshot::channel();
        self.server.datagram(query, user, |bytes| {
            replied.send(bytes.to_vec()).expect("somebody waits");
        });
        reply
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Told {
        let question = Question::new(&host(name), kind);
        let query = question.message_with_id(0x0a0b);
        let question = Question::read(&query).expect("a question");
        told(&question, &self.reply(&query).await.expect("a reply"))
    }

    async fn address(&self, name: &str, kind: RecordType) -> IpAddr {
        match self.ask(name, kind).await {
            Told::Addresses(found) if found.len() == 1 => found[0],
            other => unreachable!("{other:?}"),
        }
    }

    fn meaning(&self, ip: IpAddr) -> Option<Target> {
        self.names.meaning(SocketAddr::new(ip, 80), Instant::now())
    }
}

fn means(name: &str) -> Option<Target> {
    Some(Target::new(Host::Name(host(name)), 80).expect("a port"))
}

#[tokio::test]
async fn a_name_is_answered_at_once_with_addresses_that_mean_it() {
    let resolver = resolver();
    for kind in [RecordType::A, RecordType::AAAA] {
        let ip = resolver.address("WWW.example.org", kind).await;
        assert_eq!(ip.is_ipv4(), kind == RecordType::A);
        assert_eq!(resolver.meaning(ip), means("www.example.org"));
    }
    assert_eq!(resolver.far.asked(), [""; 0], "nobody was asked");
}

#[tokio::test]
async fn a_temporary_address_is_told_for_a_minute() {
    let question = Question::new(&host("a.example"), RecordType::A);
    let reply = resolver()
        .reply(&question.message())
        .await
        .expect("a reply");
    // Header, question, then a pointer to the name, type and class.
    let at = question.message().len() - 11 + 6;
    assert_eq!(reply[at..at + 4], 60u32.to_be_bytes());
}

#[tokio::test]
async fn https_and_svcb_are_answered_with_nothing_and_other_types_are_asked() {
    let resolver = resolver();
    for kind in [RecordType::HTTPS, RecordType::SVCB] {
        assert_eq!(resolver.ask("a.example", kind).await, Told::Nothing);
    }
    assert_eq!(resolver.far.asked(), [""; 0]);
    resolver.ask("a.example", RecordType::MX).await;
    resolver.ask("_sip._udp.a.example", RecordType::SRV).await;
    assert_eq!(resolver.far.asked(), ["a.example", "_sip._udp.a.example"]);
}

/// The address of the specification's example, and a name below it.
const SERVICE: &str = "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd.onion";

#[tokio::test]
async fn the_name_of_an_onion_service_has_an_address_that_means_it_and_nobody_is_asked() {
    use RecordType::{A, AAAA, HTTPS, MX, SVCB, TXT};
    for mode in ["", "mode = \"pessimistic\""] {
        let resolver = onion_resolver(mode);
        for name in [SERVICE.to_owned(), format!("www.{SERVICE}")] {
            for kind in [A, AAAA] {
                let ip = resolver.address(&name.to_uppercase(), kind).await;
                assert_eq!(resolver.meaning(ip), means(&name), "{kind}");
            }
            for kind in [HTTPS, SVCB, TXT, MX] {
                assert_eq!(resolver.ask(&name, kind).await, Told::Nothing, "{kind}");
            }
        }
        assert_eq!(resolver.far.asked(), [""; 0], "nobody was asked");
    }
}

#[tokio::test]
async fn what_is_no_address_of_an_onion_service_does_not_exist_and_nobody_is_asked() {
    let resolver = onion_resolver("");
    let (short, long) = (SERVICE.split_at(1).1, format!("a{SERVICE}"));
    let version = SERVICE.replace("yd.", "ya.");
    let digit = SERVICE.replace("pg6", "pg1");
    let names = ["onion", "abc.onion", short, &long, &version, &digit];
    for name in names {
        for kind in [RecordType::A, RecordType::HTTPS, RecordType::TXT] {
            assert_eq!(resolver.ask(name, kind).await, Told::Missing, "{name}");
        }
    }
    // A mistyped one looks like an address: its flow finds that it is none.
    let mistyped = SERVICE.replace("pg6", "qg6");
    let ip = resolver.address(&mistyped, RecordType::A).await;
    resolver.names.fail(ip, Instant::now());
    assert_eq!(resolver.ask(&mistyped, RecordType::A).await, Told::Missing);
    assert_eq!(resolver.far.asked(), [""; 0], "nobody was asked");
}

#[tokio::test]
async fn no_network_is_asked_for_an_onion_service_whatever_goes_another_way() {
    let text = "elsewhere = [\"onion\"]";
    for resolver in [onion_resolver(text), resolver_with(BOTH, text)] {
        for kind in [RecordType::A, RecordType::AAAA, RecordType::TXT] {
            resolver.ask(SERVICE, kind).await;
            resolver.ask("abc.onion", kind).await;
        }
        assert_eq!(resolver.far.asked(), [""; 0], "nobody was asked");
    }
}

#[tokio::test]
async fn where_no_temporary_address_is_left_an_onion_service_is_not_asked_for_elsewhere() {
    let resolver = onion_resolver("names = 1");
    let ip = resolver.address("other.example", RecordType::A).await;
    let _flow = resolver
        .names
        .hold(ip, Instant::now())
        .expect("it means a name");
    assert_eq!(resolver.ask(SERVICE, RecordType::A).await, Told::Failed);
    assert_eq!(resolver.far.asked(), [""; 0], "nobody was asked");
}

#[tokio::test]
async fn special_names_are_answered_here() {
    use RecordType::{A, AAAA, HTTPS, PTR, TXT};
    let resolver = resolver();
    let loopback = |text: &str| Told::Addresses(vec![text.parse().expect("an address")]);
    for (name, kind, expected) in [
        ("localhost", A, loopback("127.0.0.1")),
        ("a.LOCALHOST", AAAA, loopback("::1")),
        ("localhost", TXT, Told::Nothing),
        ("printer.local", A, Told::Missing),
        ("printer.local", TXT, Told::Missing),
        ("nas.home.arpa", A, Told::Missing),
        ("db.internal", A, Told::Missing),
        ("abc.onion", A, Told::Missing),
        ("name.alt", A, Told::Missing),
        ("nobody.invalid", A, Told::Missing),
        ("use-application-dns.net", A, Told::Missing),
        ("ipv4only.arpa", AAAA, Told::Nothing),
        ("_dns.resolver.arpa", RecordType::SVCB, Told::Nothing),
        ("intranet", A, Told::Missing),
        ("wpad", AAAA, Told::Missing),
        ("wpad", HTTPS, Told::Missing),
        ("1.1.168.192.in-addr.arpa", PTR, Told::Missing),
        ("168.192.in-addr.arpa", RecordType::SOA, Told::Missing),
        ("d.f.ip6.arpa", RecordType::NS, Told::Missing),
    ] {
        assert_eq!(resolver.ask(name, kind).await, expected, "{name} {kind}");
    }
    let Told::Addresses(nat64) = resolver.ask("ipv4only.arpa", A).await else {
        unreachable!("it has addresses");
    };
    assert_eq!(nat64.len(), 2);
    assert_eq!(resolver.far.asked(), [""; 0], "nobody was asked");
    for name in [
        "8.8.8.8.in-addr.arpa",
        "192.in-addr.arpa",
        "notlocal.example",
    ] {
        resolver.ask(name, PTR).await;
    }
    assert_eq!(resolver.far.asked().len(), 3, "these mean something there");
}

#[tokio::test]
async fn the_name_of_a_temporary_address_is_known_and_of_no_other() {
    let resolver = resolver();
    let ip = resolver.address("www.example", RecordType::A).await;
    let IpAddr::V4(v4) = ip else {
        unreachable!("A");
    };
    let [a, b, c, d] = v4.octets();
    let name = format!("{d}.{c}.{b}.{a}.in-addr.arpa");
    let question = Question::new(&host(&name), RecordType::PTR);
    let reply = resolver.reply(&question.message()).await.expect("a reply");
    let label = [&[3][..], b"www", &[7], b"example", &[0]].concat();
    assert!(reply.windows(label.len()).any(|part| part == label));
    // Nobody learns which names others use; who asks for it knows it.
    let of_others = async || {
        let reply = resolver.begin(&question.message(), OTHER).await;
        told(&question, &reply.expect("a reply"))
    };
    assert_eq!(of_others().await, Told::Missing);
    let asked = Question::new(&host("www.example"), RecordType::A);
    resolver
        .begin(&asked.message(), OTHER)
        .await
        .expect("a reply");
    assert_eq!(of_others().await, Told::Nothing, "a name, and no address");
    assert_eq!(resolver.ask(&name, RecordType::PTR).await, Told::Nothing);
    let other = format!("{d}.{}.{b}.{a}.in-addr.arpa", if c == 7 { 8 } else { 7 });
    assert_eq!(resolver.ask(&other, RecordType::PTR).await, Told::Missing);
    assert_eq!(resolver.far.asked(), [""; 0]);
}

#[test]
fn the_devices_addresses_say_which_families_it_has() {
    let [v4, v6] = ["198.18.0.1", "fd00::1"].map(|text| text.parse().expect(text));
    assert_eq!(Families::of(&[v4, v6]), BOTH);
    assert_eq!(Families::of(&[]), BOTH);
    let [only_v4, only_v6] = [Families::of(&[v4]), Families::of(&[v6])];
    assert!(only_v4.v4 && !only_v4.v6 && !only_v6.v4 && only_v6.v6);
}

#[tokio::test]
async fn without_ipv6_no_name_has_an_ipv6_address() {
    let families = Families {
        v4: true,
        v6: false,
    };
    for mode in ["optimistic", "pessimistic"] {
        let resolver = resolver_with(families, &format!("mode = \"{mode}\""));
        let aaaa = resolver.ask("a.example", RecordType::AAAA).await;
        assert_eq!(aaaa, Told::Nothing);
        assert_eq!(resolver.far.asked(), [""; 0]);
    }
}

#[tokio::test]
async fn a_search_candidate_exists_only_if_the_far_end_has_it() {
    let resolver = resolver_with(BOTH, "search = [\"corp.example\"]");
    let missing = resolver.ask("no.corp.example", RecordType::A).await;
    assert_eq!(missing, Told::Missing, "so that the next one is tried");
    let ip = resolver.address("git.corp.example", RecordType::A).await;
    assert_eq!(resolver.meaning(ip), means("git.corp.example"));
    let aaaa = resolver.ask("git.corp.example", RecordType::AAAA).await;
    assert_eq!(aaaa, Told::Nothing, "it has none there");
    let beside = resolver.address("notcorp.example", RecordType::A).await;
    assert_eq!(resolver.meaning(beside), means("notcorp.example"));
    assert_eq!(resolver.far.asked().len(), 3);
}

#[tokio::test]
async fn names_that_go_another_way_are_asked_for_and_keep_their_meaning() {
    for mode in ["optimistic", "pessimistic"] {
        let text = format!("mode = \"{mode}\"\nelsewhere = [\"lan\", \"168.192.in-addr.arpa\"]");
        let resolver = resolver_with(BOTH, &text);
        let ip = resolver.address("inside.lan", RecordType::A).await;
        assert_eq!(resolver.meaning(ip), means("inside.lan"));
        assert_eq!(
            resolver.ask("a.lan", RecordType::HTTPS).await,
            Told::Nothing
        );
        resolver
            .ask("1.1.168.192.in-addr.arpa", RecordType::PTR)
            .await;
        assert_eq!(resolver.far.asked().len(), 2);
    }
}

/// One where names below these domains have a way of their own, and all others too if they are left alone.
fn resolver_by_name(text: &str, by_name: &[&str], leaves_others: bool) -> TestResolver {
    let mut config: config::Dns = toml::from_str(text).expect("parses");
    config.by_name = by_name.iter().map(|name| host(name)).collect();
    config.leaves_others = leaves_others;
    configured(&config, BOTH)
}

#[tokio::test]
async fn where_only_some_names_are_taken_the_others_are_told_as_they_are() {
    use RecordType::{A, AAAA, HTTPS, SVCB, TXT};
    let elsewhere = "elsewhere = [\"out.corp.example\"]";
    let resolver = resolver_by_name(elsewhere, &["corp.example", "internal"], true);
    for name in ["corp.example", "a.Corp.example", "db.internal"] {
        for kind in [A, AAAA] {
            let ip = resolver.address(name, kind).await;
            assert_eq!(resolver.meaning(ip), means(&name.to_lowercase()));
        }
        assert_eq!(resolver.ask(name, HTTPS).await, Told::Nothing, "{name}");
    }
    assert_eq!(resolver.far.asked(), [""; 0], "nobody was asked");
    let inside = "192.168.1.1".parse().expect("an address");
    for (name, there) in [
        ("a.example", THERE),
        ("notcorp.example", THERE),
        ("a.out.corp.example", THERE),
        ("inside.lan", inside),
        ("printer", THERE),
        ("nas.home.arpa", THERE),
    ] {
        let told = resolver.ask(name, A).await;
        assert_eq!(told, Told::Addresses(vec![there]), "{name}");
        resolver.ask(name, HTTPS).await;
    }
    assert_eq!(resolver.far.asked().len(), 12, "each as it is");
    assert_eq!(resolver.ask("no.example", A).await, Told::Missing);
    assert_eq!(resolver.ask("pool.example", A).await, Told::Refused, "ours");
    // Where these would lead, names could not be told apart.
    let asked = resolver.far.asked().len();
    assert_eq!(
        resolver.ask("use-application-dns.net", A).await,
        Told::Missing
    );
    assert_eq!(
        resolver.ask("_dns.resolver.arpa", SVCB).await,
        Told::Nothing
    );
    assert_eq!(resolver.ask("abc.onion", TXT).await, Told::Missing);
    let loopback = Told::Addresses(vec!["127.0.0.1".parse().expect("an address")]);
    assert_eq!(resolver.ask("localhost", A).await, loopback);
    assert_eq!(resolver.far.asked().len(), asked);
}

/// Its flow would go another way.
#[tokio::test]
async fn no_name_that_has_a_way_of_its_own_has_a_real_address_where_no_temporary_one_is_left() {
    let text = "names = 1\nsearch = [\"lab.corp.example\"]";
    for leaves_others in [false, true] {
        let resolver = resolver_by_name(text, &["corp.example"], leaves_others);
        let ip = resolver.address("a.corp.example", RecordType::A).await;
        let _flow = resolver.names.hold(ip, Instant::now()).expect("a name");
        for name in ["b.corp.example", "c.lab.corp.example"] {
            let told = resolver.ask(name, RecordType::A).await;
            assert_eq!(told, Told::Failed, "{name}");
        }
    }
}

#[tokio::test]
async fn a_name_that_has_a_way_of_its_own_keeps_its_meaning_in_both_modes_and_others_are_as_ever() {
    for mode in ["optimistic", "pessimistic"] {
        let text = format!("mode = \"{mode}\"");
        let resolver = resolver_by_name(&text, &["corp.example"], false);
        let ip = resolver.address("a.corp.example", RecordType::A).await;
        assert_eq!(resolver.meaning(ip), means("a.corp.example"));
        let told = resolver.ask("a.corp.example", RecordType::HTTPS).await;
        assert_eq!(told, Told::Nothing);
        let other = resolver.address("a.example", RecordType::A).await;
        assert_eq!(other == THERE, mode == "pessimistic");
        assert_eq!(
            resolver.ask("db.internal", RecordType::A).await,
            Told::Missing
        );
    }
}

#[tokio::test]
async fn pessimistic_mode_tells_what_the_far_end_answers() {
    let resolver = resolver_with(BOTH, "mode = \"pessimistic\"");
    let ip = resolver.address("a.example", RecordType::A).await;
    assert_eq!(ip, THERE);
    for (name, expected) in [
        ("no.example", Told::Missing),
        ("broken.example", Told::Failed),
        ("forbidden.example", Told::Refused),
        ("other.example", Told::Failed),
    ] {
        assert_eq!(resolver.ask(name, RecordType::A).await, expected, "{name}");
    }
    assert_eq!(resolver.names.len(), 0);
    assert_eq!(resolver.counters.dns_failed.value(), 2);
}

#[tokio::test]
async fn the_far_end_cannot_lead_a_program_to_its_neighbours() {
    for (text, inside) in [
        ("", Told::Refused),
        (
            "private = true",
            Told::Addresses(vec![[192, 168, 1, 1].into()]),
        ),
    ] {
        let resolver = resolver_with(BOTH, &format!("mode = \"pessimistic\"\n{text}"));
        assert_eq!(resolver.ask("inside.example", RecordType::A).await, inside);
        let pool = resolver.ask("pool.example", RecordType::A).await;
        assert_eq!(pool, Told::Refused, "temporary addresses are ours to give");
    }
}

#[tokio::test]
async fn a_name_that_a_flow_did_not_find_is_missing_for_a_while() {
    let resolver = resolver();
    let ip = resolver.address("typo.example", RecordType::A).await;
    resolver.names.fail(ip, Instant::now());
    let again = resolver.ask("typo.example", RecordType::A).await;
    assert_eq!(again, Told::Missing);
}

#[tokio::test(start_paused = true)]
async fn a_far_end_that_is_silent_is_given_up_in_time() {
    let resolver = resolver();
    let start = Instant::now();
    let failed = resolver.ask("late.example", RecordType::TXT).await;
    assert_eq!(failed, Told::Failed);
    assert_eq!(start.elapsed(), Duration::from_secs(4));
}

#[tokio::test]
async fn a_storm_of_queries_is_bounded_and_told_and_names_are_still_answered() {
    let resolver = resolver_with(BOTH, "asked = 3");
    let question = Question::new(&host("late.example"), RecordType::TXT);
    let mut replies = Vec::new();
    for _ in 0..3 {
        let (replied, reply) = oneshot::channel();
        resolver
            .server
            .datagram(&question.message(), HERE, |bytes| {
                replied.send(bytes.to_vec()).expect("somebody waits");
            });
        replies.push(reply);
    }
    while resolver.far.waiting.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        let crowded = resolver.ask("late.example", RecordType::TXT).await;
        assert_eq!(crowded, Told::Failed);
    }
    assert_eq!(resolver.counters.dns_crowded.value(), 100);
    resolver.address("a.example", RecordType::A).await;
    resolver.far.go.notify_waiters();
    for reply in replies {
        let reply = reply.await.expect("a reply");
        assert_ne!(told(&question, &reply), Told::Failed);
    }
}

#[tokio::test]
async fn a_storm_of_one_users_queries_leaves_room_for_those_of_another() {
    let resolver = resolver_with(BOTH, "asked = 4");
    let question = Question::new(&host("late.example"), RecordType::TXT);
    let mut storm: Vec<_> = (0..50)
        .map(|_| resolver.begin(&question.message(), HERE))
        .collect();
    let other = Question::new(&host("b.example"), RecordType::TXT);
    for _ in 0..10 {
        let reply = resolver.begin(&other.message(), OTHER).await;
        assert_ne!(told(&other, &reply.expect("a reply")), Told::Failed);
    }
    // Of two users that both ask more than there is room for each has half of it.
    let mut waiting: Vec<_> = (0..3)
        .map(|_| resolver.begin(&question.message(), OTHER))
        .collect();
    let third = waiting.pop().expect("three").await.expect("a reply");
    assert_eq!(told(&question, &third), Told::Failed);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let mut under_way = |all: &mut Vec<oneshot::Receiver<_>>| {
        all.retain_mut(|reply| reply.try_recv().is_err());
        all.len()
    };
    assert_eq!([&mut storm, &mut waiting].map(&mut under_way), [2, 2]);
    assert_eq!(resolver.counters.dns_crowded.value(), 46 + 2 + 1);
}

#[tokio::test]
async fn a_user_that_asks_for_all_names_leaves_temporary_addresses_to_another() {
    let resolver = resolver_with(BOTH, "names = 64");
    let ask = async |name: String, user| {
        let question = Question::new(&host(&name), RecordType::A);
        let reply = resolver.begin(&question.message(), user).await;
        match told(&question, &reply.expect("a reply")) {
            Told::Addresses(found) => found[0],
            other => unreachable!("{other:?}"),
        }
    };
    for n in 0..200 {
        ask(format!("n{n}.example"), HERE).await;
    }
    for n in 0..32 {
        let ip = ask(format!("quiet{n}.example"), OTHER).await;
        assert!(resolver.names.is_temporary(ip), "{n}");
        ask(format!("m{n}.example"), HERE).await;
        assert_eq!(resolver.meaning(ip), means(&format!("quiet{n}.example")));
    }
}

#[tokio::test]
async fn while_no_temporary_address_is_left_the_far_end_is_asked() {
    let text = "names = 2\nsearch = [\"lab.example\"]\nelsewhere = [\"home.example\"]";
    let resolver = resolver_with(BOTH, text);
    for name in ["a.example", "b.example", "a.example"] {
        resolver.address(name, RecordType::A).await;
    }
    assert_eq!(resolver.far.asked(), [""; 0]);
    let real = Told::Addresses(vec![THERE]);
    for name in ["c.example", "d.lab.example"] {
        assert_eq!(resolver.ask(name, RecordType::A).await, real, "{name}");
    }
    let inside = resolver.ask("inside.example", RecordType::A).await;
    assert_eq!(inside, Told::Refused, "real addresses are judged");
    let missing = resolver.ask("no.example", RecordType::A).await;
    assert_eq!(missing, Told::Missing);
    let elsewhere = resolver.ask("e.home.example", RecordType::A).await;
    assert_eq!(elsewhere, Told::Failed, "its flows would go astray");
    assert_eq!(resolver.counters.dns_exhausted.value(), 5);
}

#[tokio::test(start_paused = true)]
async fn names_get_temporary_addresses_again_when_others_have_expired() {
    let resolver = resolver_with(BOTH, "names = 1");
    resolver.address("a.example", RecordType::A).await;
    let real = resolver.ask("b.example", RecordType::A).await;
    assert_eq!(real, Told::Addresses(vec![THERE]));
    tokio::time::sleep(Duration::from_secs(71)).await;
    let ip = resolver.address("b.example", RecordType::A).await;
    assert!(resolver.names.is_temporary(ip));
}

#[tokio::test]
async fn what_is_no_query_is_dropped_or_told_so() {
    let resolver = resolver();
    assert_eq!(resolver.reply(b"").await, None);
    assert_eq!(resolver.reply(&[0xff; 30]).await, None);
    let refused = resolver.reply(&[0; 12]).await.expect("a reply");
    assert_eq!(refused[3] & 0x0f, 1);
    assert_eq!(resolver.counters.dns_malformed.value(), 3);
    let mut chaos = Question::new(&host("version.bind"), RecordType::TXT).message();
    let class = chaos.len() - 12;
    chaos[class] = 3;
    let refused = resolver.reply(&chaos).await.expect("a reply");
    assert_eq!(refused[3] & 0x0f, 5);
}

#[tokio::test]
async fn a_large_answer_is_cut_for_a_datagram_and_whole_on_a_stream() {
    let resolver = resolver_with(BOTH, "mode = \"pessimistic\"");
    let question = Question::new(&host("many.example"), RecordType::A);
    let query = question.message_with_id(7);
    let cut = resolver.reply(&query).await.expect("a reply");
    assert!(cut.len() <= 1232 && cut[2] & 2 != 0, "truncated");
    let mut stream = resolver.server.stream(HERE);
    for _ in 0..2 {
        let len = u16::try_from(query.len()).expect("short");
        stream.write_u16(len).await.expect("written");
        stream.write_all(&query).await.expect("written");
        let mut reply = vec![0; stream.read_u16().await.expect("read").into()];
        stream.read_exact(&mut reply).await.expect("read");
        assert_eq!(question.heard(&reply).expect("its answer").1.len(), 256);
    }
    stream.shutdown().await.expect("finished");
    assert_eq!(stream.read(&mut [0; 1]).await.expect("an end"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_promises_more_than_a_query_has_ends_at_once() {
    let resolver = resolver();
    for len in [4097, u16::MAX] {
        let (mut stream, start) = (resolver.server.stream(HERE), Instant::now());
        stream.write_u16(len).await.expect("written");
        assert_eq!(stream.read(&mut [0; 1]).await.expect("an end"), 0);
        assert_eq!(start.elapsed(), Duration::ZERO, "nothing is waited for");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_stops_in_the_middle_ends() {
    let resolver = resolver();
    let (mut stream, start) = (resolver.server.stream(HERE), Instant::now());
    stream.write_all(&[0, 50, 1]).await.expect("written");
    assert_eq!(stream.read(&mut [0; 1]).await.expect("an end"), 0);
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

proptest! {
    #[test]
    fn any_bytes_get_one_answer_at_most(bytes: Vec<u8>) {
        let config = config::Dns::default();
        let names = Arc::new(Names::new(&config.pools(), &[], config.mapping_limits()));
        let dns = Responder::new(config, BOTH, names, Arc::default());
        if let QueryOutcome::Forward(asking) = dns.answer(&bytes, Transport::Udp, HERE, Instant::now()) {
            let reply = dns.answered(&asking, Ok(bytes), Instant::now());
            prop_assert!(reply.len() <= 1232);
        }
    }
}

fn program() -> SocketAddr {
    SocketAddr::new(PROGRAM, 4000)
}

fn resolver_of(bench: &Bench) -> SocketAddr {
    SocketAddr::new(bench.context.config.dns.resolvers[0], 53)
}

/// What the resolver answers to the program.
async fn ask(bench: &mut Bench, name: &str, kind: RecordType) -> Told {
    let question = Question::new(&host(name), kind);
    let there = resolver_of(bench);
    bench.send(udp_packet(program(), there, &question.message()));
    let packet = bench.sink.next().await;
    let packet = parsed(&packet);
    assert_eq!((packet.source, packet.destination), (there.ip(), PROGRAM));
    let datagram = ip::udp::parse(packet.payload).expect("a datagram");
    assert_eq!((datagram.source, datagram.destination), (53, 4000));
    told(&question, datagram.payload)
}

#[tokio::test]
async fn a_datagram_to_a_temporary_address_goes_to_the_name() {
    let mut bench = Bench::new();
    bench.network.host(host("www.example"), TARGET);
    let far = bench.network.bind(TARGET);
    let Told::Addresses(found) = ask(&mut bench, "www.example", RecordType::A).await else {
        unreachable!("an address");
    };
    let there = SocketAddr::new(found[0], far.address().port());
    bench.send(udp_packet(program(), there, b"hello"));
    let (payload, from) = far.recv().await;
    assert_eq!(payload, &b"hello"[..]);
    far.send(b"back", from);
    let packet = bench.sink.next().await;
    let packet = parsed(&packet);
    assert_eq!(
        packet.source, found[0],
        "the program knows no other address"
    );
}

#[tokio::test]
async fn a_name_that_a_flow_did_not_find_is_answered_so_from_then_on() {
    let mut bench = Bench::new();
    let Told::Addresses(found) = ask(&mut bench, "typo.example", RecordType::A).await else {
        unreachable!("an address");
    };
    let there = SocketAddr::new(found[0], 9);
    bench.send(udp_packet(program(), there, b"hello"));
    let packet = bench.sink.next().await;
    assert_eq!(parsed(&packet).protocol, 1, "ICMP: unreachable");
    let again = ask(&mut bench, "typo.example", RecordType::A).await;
    assert_eq!(again, Told::Missing);
}

#[tokio::test]
async fn a_flow_to_an_address_that_means_nothing_is_refused() {
    let mut bench = Bench::new();
    for there in ["198.18.77.7:443", "198.18.0.2:853", "198.18.0.77:53"] {
        let there = there.parse().expect("an address");
        bench.send(udp_packet(program(), there, b"hello"));
        let packet = bench.sink.next().await;
        assert_eq!(parsed(&packet).protocol, 1, "{there}: unreachable");
    }
    assert_eq!(bench.context.counters.expired.value(), 3);
    assert_eq!(bench.network.seen(), [], "nobody was asked");
}

#[tokio::test]
async fn a_train_of_queries_is_answered_one_by_one() {
    let mut bench = Bench::new();
    let question = Question::new(&host("a.example"), RecordType::A);
    let message = question.message();
    let train = message.repeat(3);
    bench.take(&crate::tun::device::IncomingPacket {
        bytes: udp_packet(program(), resolver_of(&bench), &train).into(),
        checked: true,
        segment: u16::try_from(message.len()).ok(),
    });
    for _ in 0..3 {
        bench.sink.next().await;
    }
    assert_eq!(bench.sink.try_next(), None);
}

#[tokio::test]
async fn a_resolver_elsewhere_is_answered_in_its_place() {
    let mut bench = Bench::with(|config| {
        config.dns.resolvers = vec!["192.0.2.53".parse().expect("an address")];
    });
    let told = ask(&mut bench, "localhost", RecordType::A).await;
    assert_eq!(told, Told::Addresses(vec![Ipv4Addr::LOCALHOST.into()]));
}

#[tokio::test]
async fn streams_to_port_53_of_the_resolver_end_in_it_and_others_do_not() {
    let bench = Bench::new();
    let there = resolver_of(&bench);
    let meaning = bench.context.names.meaning(there, Instant::now());
    assert_eq!(meaning, Some(there.into()));
    let terms = Terms::default();
    let target = there.into();
    let mut stream = bench
        .context
        .open_stream(&target, User::at(PROGRAM), &terms)
        .await
        .expect("opens");
    let query = Question::new(&host("localhost"), RecordType::A).message();
    let len = u16::try_from(query.len()).expect("short");
    stream.write_u16(len).await.expect("written");
    stream.write_all(&query).await.expect("written");
    assert!(stream.read_u16().await.expect("read") > len);
    let mut listener = bench.network.listen(TARGET);
    let target = listener.address().into();
    let opened = bench
        .context
        .open_stream(&target, User::at(PROGRAM), &terms)
        .await;
    drop((opened.expect("opens"), listener.accept().await));
}
