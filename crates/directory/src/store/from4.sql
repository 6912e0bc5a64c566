-- Since when a relay passes the authority's tests; times are seconds since 1970.
ALTER TABLE descriptor ADD COLUMN since INTEGER;
