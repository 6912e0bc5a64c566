//! Documents that are alike, as those of directories are, and documents and commands that somebody made up.

use proptest::prelude::*;

use super::*;

/// The lines of a document, each with its end.
fn text(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Few different lines, so that many are there more than once, and documents share some.
fn document() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[a-f]{0,2}", 0..60)
}

/// A document and one that was made of it by changing lines here and there.
fn alike() -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), 0..3, "[a-z]{1,4}"), 0..12);
    (document(), changes).prop_map(|(old, changes)| {
        let mut new = old.clone();
        for (place, how, line) in changes {
            let place = place.index(new.len().max(1));
            match how {
                0 if place < new.len() => drop(new.remove(place)),
                1 if place < new.len() => new[place] = line,
                _ => new.insert(place.min(new.len()), line),
            }
        }
        (old, new)
    })
}

proptest! {
    #[test]
    fn the_commands_for_two_documents_make_the_one_of_the_other(old in document(), new in document()) {
        let (old, new) = (text(&old), text(&new));
        let script = make(&old, &new).expect("made");
        prop_assert_eq!(apply(&old, &script), Ok(new));
    }

    #[test]
    fn of_documents_that_are_alike_little_is_written((old, new) in alike()) {
        let (old, new) = (text(&old), text(&new));
        let script = make(&old, &new).expect("made");
        prop_assert_eq!(apply(&old, &script), Ok(new.clone()));
        prop_assert!(script.len() <= new.len() + 16 * 12 + 8, "{}", script);
        prop_assert_eq!(script.is_empty(), old == new);
    }

    #[test]
    fn any_commands_are_obeyed_or_refused(old in document(), script in "([0-9]{1,2}(,([0-9]{1,2}|\\$))?[acd]\n([a-c.]{0,2}\n){0,4}){0,6}[ -~]{0,4}") {
        let old = text(&old);
        if let Ok(new) = apply(&old, &script) {
            prop_assert!(new.len() <= old.len() + script.len());
        }
    }
}

/// The example of the commands in dir-spec, and each of them.
#[test]
fn each_command_does_what_the_specification_says() {
    let old = "one\ntwo\nthree\nfour\nfive\n";
    for (script, new) in [
        ("", old),
        ("2d\n", "one\nthree\nfour\nfive\n"),
        ("2,4d\n", "one\nfive\n"),
        ("3,$d\n", "one\ntwo\n"),
        ("1,$d\n", ""),
        ("6,$d\n", old),
        ("2c\n2\n.\n", "one\n2\nthree\nfour\nfive\n"),
        ("2,5c\n2\n3\n.\n", "one\n2\n3\n"),
        ("0a\nzero\n.\n", "zero\none\ntwo\nthree\nfour\nfive\n"),
        ("5a\nsix\n.\n", "one\ntwo\nthree\nfour\nfive\nsix\n"),
        ("4,$d\n3a\nlast\n.\n1c\n1\n.\n", "1\ntwo\nthree\nlast\n"),
        (
            "5d\n4a\n5\n.\n4a\n4.5\n.\n",
            "one\ntwo\nthree\nfour\n4.5\n5\n",
        ),
    ] {
        assert_eq!(apply(old, script).as_deref(), Ok(new), "{script}");
    }
}

#[test]
fn what_is_out_of_order_or_no_command_is_refused() {
    let old = "one\ntwo\nthree\n";
    for script in [
        "1d\n2d\n",
        "4d\n",
        "2,4d\n",
        "3,2d\n",
        "0d\n",
        "0c\nx\n.\n",
        "4a\nx\n.\n",
        "7,$d\n",
        "2d\n1,$d\n",
        "2,$c\nx\n.\n",
        "2,3a\nx\n.\n",
        "1c\n.\n",
        "1a\n.\n",
        "1a\nx\n",
        "1a\n",
        "1d",
        "d\n",
        "\n",
        ",d\n",
        "1,d\n",
        "$d\n",
        "01d\n",
        "+1d\n",
        "1s/a/b/\n",
        "1i\nx\n.\n",
        "w\n",
        "1 d\n",
        "99999999999999999999999d\n",
        "1é\n",
        "é\n",
    ] {
        assert!(apply(old, script).is_err(), "{script:?}");
    }
    assert!(apply("no end", "").is_err());
}

#[test]
fn a_document_with_a_dot_alone_or_without_an_end_has_no_difference() {
    assert_eq!(make("a\n", "a\n.\n"), None);
    assert_eq!(make("a\n", "a"), None);
    assert_eq!(make("a", "a\n"), None);
    assert!(make("a\n.\n", "a\n").is_some(), "it can be taken away");
}

/// What makes other ways of comparing slow, all lines different or all the same: a time that is linear in the lines. A quadratic one takes minutes here.
#[test]
fn documents_that_have_nothing_or_everything_in_common_take_no_longer() {
    let lines = 200_000;
    let document = |line: &dyn Fn(usize) -> String| text(&(0..lines).map(line).collect::<Vec<_>>());
    let (ups, downs) = (
        document(&|n| format!("line {n}")),
        document(&|n| format!("line {}", lines - n)),
    );
    let (same, pairs) = (
        document(&|_| "x".into()),
        document(&|n| format!("{}", n % 2)),
    );
    for (old, new) in [
        (&ups, &downs),
        (&ups, &same),
        (&same, &pairs),
        (&pairs, &same),
    ] {
        let script = make(old, new).expect("made");
        assert_eq!(apply(old, &script).as_ref(), Ok(new));
    }
    let many = (1..=lines).rev().map(|n| format!("{n}d\n"));
    assert_eq!(apply(&ups, &many.collect::<String>()), Ok(String::new()));
}
