BEGIN TRANSACTION;
CREATE TABLE counters (name text primary key, value real not null) without rowid;
INSERT INTO "counters" VALUES('ckpt_saves_total{method="fake",outcome="saved"}',1.0);
CREATE TABLE images (
            job integer not null,
            attempt integer not null,
            number integer not null,
            taken real not null,
            body text not null,
            primary key (job, attempt, number)
        ) without rowid;
INSERT INTO "images" VALUES(7,0,1,1800000090.0,'{"job":7,"label":"7","attempt":0,"number":1,"method":"fake","node":"pub1","taken":1800000090.0,"seconds":2.0,"size":0,"path":""}');
CREATE TABLE interruptions (
            instance text primary key,
            offer text not null,
            at real not null
        ) without rowid;
INSERT INTO "interruptions" VALUES('i-1','aws/c6i.xlarge/eu-west-1a/spot',1800000080.0);
CREATE TABLE notices (
            key text primary key,
            body text not null,
            closed real
        ) without rowid;
INSERT INTO "notices" VALUES('k1','{"key":"k1","notice":{"instance":"i-1","kind":"interruption","seen":1800000080.0,"deadline":null,"node":"","reason":""},"source":"cloud","offer":"aws/c6i.xlarge/eu-west-1a/spot","closed":null}',NULL);
CREATE TABLE releases (node text primary key) without rowid;
CREATE TABLE rescues (
            job integer not null,
            attempt integer not null,
            step text not null,
            over integer not null,
            changed real not null,
            body text not null,
            primary key (job, attempt)
        ) without rowid;
INSERT INTO "rescues" VALUES(7,0,'saved',0,1800000091.0,'{"run":{"job":7,"label":"7","attempt":0,"user":"u","uid":1000,"gid":1000,"nodes":["pub1"],"partition":"pub","started":1800000060.0,"options":{},"directory":""},"method":"fake","threatened":["pub1"],"reason":"taken","step":"saved","began":1800000081.0,"changed":1800000091.0,"cause":"reclaim","deadline":null,"dump":60.0,"saves":true,"image":{"job":7,"label":"7","attempt":0,"number":1,"method":"fake","node":"pub1","taken":1800000090.0,"seconds":2.0,"size":0,"path":""},"at":null,"again":false,"tries":0,"newest":null,"helped":0,"note":"","stopped":false,"suspended":0.0,"held":null,"avoids":null,"excluded":[],"reached":{"saving":1800000082.0,"saved":1800000091.0}}');
CREATE TABLE suspensions (job integer primary key, body text not null) without rowid;
INSERT INTO "suspensions" VALUES(8,'{"job":8,"attempt":0,"since":1800000000.0}');
CREATE TABLE unsavable (job integer primary key, body text not null) without rowid;
INSERT INTO "unsavable" VALUES(9,'{"job":9,"label":"9","attempt":0,"method":"criu","at":1800000000.0,"why":"a socket","remedy":"close it","moved":false}');
CREATE INDEX notices_open on notices (key) where closed is null;
CREATE INDEX rescues_open on rescues (changed) where over = 0;
COMMIT;
pragma user_version = 4;
