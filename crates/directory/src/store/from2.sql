-- While the list is split, the one before is used.
CREATE TABLE before (one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL);
