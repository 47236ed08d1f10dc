BEGIN TRANSACTION;
CREATE TABLE counters (name text primary key, value real not null) without rowid;
CREATE TABLE images (
            job integer not null,
            attempt integer not null,
            number integer not null,
            taken real not null,
            body text not null,
            primary key (job, attempt, number)
        ) without rowid;
INSERT INTO "images" VALUES(2,0,1,1800000146.0,'{"job":2,"label":"2","attempt":0,"number":1,"method":"fake","node":"pub1","taken":1800000146.0,"seconds":2.0,"size":1024,"path":""}');
CREATE TABLE interruptions (
            instance text primary key,
            offer text not null,
            at real not null
        ) without rowid;
INSERT INTO "interruptions" VALUES('pub-00000001','pub/small/zone-1/spot',1800000144.0);
CREATE TABLE notices (
            key text primary key,
            body text not null,
            closed real
        ) without rowid;
INSERT INTO "notices" VALUES('notices of pub:interruption:pub-00000001:1800000263','{"key":"notices of pub:interruption:pub-00000001:1800000263","notice":{"instance":"pub-00000001","kind":"interruption","seen":1800000143.0,"deadline":1800000263.0,"node":"","reason":""},"source":"notices of pub","offer":"pub/small/zone-1/spot","closed":null}',NULL);
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
INSERT INTO "rescues" VALUES(2,0,'saved',0,1800000146.0,'{"run":{"job":2,"label":"2","attempt":0,"user":"","uid":-1,"gid":-1,"nodes":["pub1"],"partition":"","started":1800000022.0,"options":{},"directory":""},"method":"fake","threatened":["pub1"],"reason":"interruption notice, 119 s left","step":"saved","began":1800000144.0,"changed":1800000146.0,"cause":"reclaim","deadline":1800000263.0,"dump":10.0,"saves":true,"image":{"job":2,"label":"2","attempt":0,"number":1,"method":"fake","node":"pub1","taken":1800000146.0,"seconds":2.0,"size":1024,"path":""},"at":null,"again":false,"tries":0,"newest":0,"helped":0,"note":"","stopped":false,"held":null,"avoids":null,"excluded":[],"reached":{"planned":1800000144.0,"saving":1800000144.0,"saved":1800000146.0}}');
CREATE TABLE unsavable (job integer primary key, body text not null) without rowid;
CREATE INDEX notices_open on notices (key) where closed is null;
CREATE INDEX rescues_open on rescues (changed) where over = 0;
COMMIT;
pragma user_version = 3;
