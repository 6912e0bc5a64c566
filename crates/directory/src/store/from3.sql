-- The exits of which a client takes its, and the round trips to them in milliseconds; times are seconds since 1970.
CREATE TABLE candidate (place INTEGER PRIMARY KEY, identity BLOB NOT NULL, millis INTEGER, since INTEGER NOT NULL);
