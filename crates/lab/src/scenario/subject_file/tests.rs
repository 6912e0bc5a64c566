//! Subjects' files: what an author writes, and what comes of it.

use super::*;

#[test]
fn a_subject_has_a_name() {
    let failure = SubjectFile::parse("s.toml", "summary = 'x'").expect_err("no name");
    assert!(
        failure.to_string().contains("the key \"name\" is missing"),
        "{failure}"
    );
}
