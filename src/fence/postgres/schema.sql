-- Fencing for PostgreSQL: apply once, as a migration, in the schema where the table shall be. Applying it again changes nothing.
--
--   BEGIN;
--   SELECT tenure_fence('report-7', 844424930132010);   -- raises TNF01 if somebody newer was here
--   ... any number of statements ...
--   COMMIT;

CREATE TABLE IF NOT EXISTS tenure_fences (
    resource text PRIMARY KEY,
    token bigint NOT NULL CHECK (token >= 0)
) WITH (fillfactor = 50); -- the row of a busy resource is updated in place

-- Accepts the token or raises SQLSTATE TNF01, and locks the resource until the transaction ends: a newer token waits.
-- It has to be a statement of its own, before those that it protects.
--
-- One INSERT .. ON CONFLICT does it all. The row is locked even where its WHERE is false; two first uses meet at the
-- primary key; and in REPEATABLE READ and above, a row that changed since the snapshot ends in 40001 and not in an answer
-- from the past. The row is updated for an equal token, too, for just that reason.
--
-- Not STRICT: with a null token, a strict function would return without having checked anything.
CREATE OR REPLACE FUNCTION tenure_fence(resource text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    highest bigint;
BEGIN
    IF $1 IS NULL OR $2 IS NULL OR $2 < 0 THEN
        RAISE EXCEPTION 'a fence needs a resource and a token of 0 or more' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO tenure_fences AS kept (resource, token) VALUES ($1, $2)
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE kept.token <= excluded.token;
    IF NOT FOUND THEN
        SELECT kept.token INTO STRICT highest FROM tenure_fences AS kept WHERE kept.resource = $1;
        RAISE EXCEPTION 'fencing token % is stale: % has seen %', $2, $1, highest
            USING ERRCODE = 'TNF01', DETAIL = 'offered=' || $2 || ' highest=' || highest;
    END IF;
END
$$;
