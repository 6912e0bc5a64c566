//! In a directory of its own, never the machine's file.

use tempfile::TempDir;

use super::*;

const OURS: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2))];

fn etc(old: Option<&str>) -> (TempDir, ResolvConf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("resolv.conf");
    if let Some(old) = old {
        fs::write(&path, old).expect("written");
    }
    let run = directory.path().join("run");
    fs::create_dir(&run).expect("made");
    let conf = ResolvConf::at(&path, &run);
    (directory, conf)
}

fn names(directory: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).expect("readable");
    let mut names: Vec<_> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    names
}

fn read(conf: &ResolvConf) -> String {
    fs::read_to_string(&conf.path).expect("there")
}

#[test]
fn a_file_is_replaced_by_ours_and_given_back_without_a_trace() {
    let (directory, conf) = etc(Some("nameserver 192.0.2.1\n"));
    conf.replace(&OURS).expect("replaced");
    assert!(read(&conf).ends_with("nameserver 198.18.0.2\nsearch .\noptions edns0\n"));
    assert_eq!(conf.servers(), ["192.0.2.1:53".parse().expect("one")]);
    conf.replace(&OURS).expect("replaced again");
    conf.give_back().expect("given back");
    assert_eq!(read(&conf), "nameserver 192.0.2.1\n");
    assert_eq!(names(&directory), ["resolv.conf", "run"]);
    conf.give_back().expect("nothing to do");
}

#[test]
fn a_link_is_a_link_again_and_its_target_was_never_written() {
    let (directory, conf) = etc(None);
    let target = directory.path().join("target");
    fs::write(&target, "nameserver 192.0.2.1\n").expect("written");
    std::os::unix::fs::symlink("target", &conf.path).expect("linked");
    conf.replace(&OURS).expect("replaced");
    assert!(read(&conf).contains("198.18.0.2"));
    assert_eq!(
        fs::read_to_string(&target).expect("there"),
        "nameserver 192.0.2.1\n"
    );
    conf.give_back().expect("given back");
    assert_eq!(
        fs::read_link(&conf.path).expect("a link"),
        Path::new("target")
    );
}

#[test]
fn where_there_was_none_there_is_none_again() {
    let (directory, conf) = etc(None);
    conf.replace(&OURS).expect("made");
    conf.give_back().expect("given back");
    assert_eq!(names(&directory), ["run"]);
}

#[test]
fn one_that_somebody_wrote_meanwhile_becomes_the_one_to_give_back() {
    let (_directory, conf) = etc(Some("nameserver 192.0.2.1\n"));
    conf.replace(&OURS).expect("replaced");
    fs::write(&conf.path, "nameserver 192.0.2.9\n").expect("written");
    assert_eq!(conf.servers(), ["192.0.2.9:53".parse().expect("one")]);
    conf.replace(&OURS).expect("replaced");
    assert_eq!(conf.servers(), ["192.0.2.9:53".parse().expect("one")]);
    conf.give_back().expect("given back");
    assert_eq!(read(&conf), "nameserver 192.0.2.9\n");
}

#[test]
fn one_that_is_mounted_is_written_and_written_back() {
    let (directory, conf) = etc(Some("nameserver 192.0.2.1\n"));
    conf.overwrite(&OURS).expect("written");
    assert!(conf.is_ours());
    assert_eq!(conf.servers(), ["192.0.2.1:53".parse().expect("one")]);
    conf.overwrite(&OURS).expect("written again");
    conf.give_back().expect("given back");
    assert_eq!(read(&conf), "nameserver 192.0.2.1\n");
    assert_eq!(names(&directory), ["resolv.conf", "run"]);
}

#[test]
fn servers_are_read_as_the_system_does() {
    let text = "# nameserver 192.0.2.9\nsearch a\n nameserver  192.0.2.1 # one\nnameserver fe80::1%eth0\nnameserver x\n";
    let expected: Vec<SocketAddr> = ["192.0.2.1:53", "[fe80::1]:53"]
        .iter()
        .map(|text| text.parse().expect("an address"))
        .collect();
    assert_eq!(servers_of(text), expected);
}

#[test]
fn domains_of_other_interfaces_are_known_whether_they_search_or_route() {
    let told = "Global: global.example\nLink 1 (lo):\nLink 2 (eth0): corp.example ~vpn.example\n   more.example\nLink 3 (hoplite0): ~. ~old.example\nLink 4 (wlan0): ~. x..y Corp.Example\n";
    let expected = [
        "~corp.example",
        "~global.example",
        "~more.example",
        "~vpn.example",
    ];
    assert_eq!(routed(told, "hoplite0"), expected);
}

#[test]
fn a_link_is_still_followed_for_servers_while_ours_stands_in_its_place() {
    let (directory, conf) = etc(None);
    let target = directory.path().join("target");
    fs::write(&target, "nameserver 192.0.2.1\n").expect("written");
    std::os::unix::fs::symlink("target", &conf.path).expect("linked");
    conf.replace(&OURS).expect("replaced");
    fs::write(&target, "nameserver 192.0.2.2\n").expect("written");
    assert_eq!(conf.servers(), ["192.0.2.2:53".parse().expect("one")]);
}
