-- `fence` is the token of the last write. `highest` and the trigger are not part of the pattern. They are an independent
-- audit: they record each accepted write that came after the write of a newer holder.
CREATE TABLE IF NOT EXISTS guarded   (name TEXT PRIMARY KEY, body TEXT, fence BIGINT NOT NULL DEFAULT 0, highest BIGINT NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS unguarded (LIKE guarded INCLUDING ALL);
CREATE TABLE IF NOT EXISTS stale   (what TEXT, name TEXT, fence BIGINT, highest BIGINT);
CREATE TABLE IF NOT EXISTS refused (name TEXT, fence BIGINT);
CREATE OR REPLACE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.fence < OLD.highest THEN
        INSERT INTO stale VALUES (TG_TABLE_NAME, NEW.name, NEW.fence, OLD.highest);
    END IF;
    NEW.highest := greatest(OLD.highest, NEW.fence);
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER audit BEFORE UPDATE ON guarded   FOR EACH ROW EXECUTE FUNCTION audit();
CREATE OR REPLACE TRIGGER audit BEFORE UPDATE ON unguarded FOR EACH ROW EXECUTE FUNCTION audit();
