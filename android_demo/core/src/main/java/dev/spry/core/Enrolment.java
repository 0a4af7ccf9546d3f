package dev.spry.core;

import dev.spry.core.store.Store;
import dev.spry.core.wire.Enrolled;
import dev.spry.core.wire.Server;
import dev.spry.core.wire.Signing;

/** How a server comes to know a device: by a token once, by the device's own key from then on. */
final class Enrolment {
    private final Server server;
    private final Store store;
    private final Tell tell;

    Enrolment(Server server, Store store, Tell tell) {
        this.server = server;
        this.store = store;
        this.tell = tell;
    }

    /** Have the server's requests be this device's, which enrols by the token if it has not. */
    void enrol(String token, String name) {
        Enrolled identity = store.identity();
        if (identity == null) {
            identity = enrolled(token, name);
        } else if (!identity.secret.isEmpty()) {
            identity = withKey(identity);
        }
        identify(identity);
    }

    private void identify(Enrolled identity) {
        boolean signs = identity.secret.isEmpty();
        server.identify(identity, signs ? new Signing(identity.device, store.key(), server.url) : null);
    }

    private Enrolled enrolled(String token, String name) {
        if (token == null || token.isEmpty()) {
            throw new SpryException("this device is not enrolled with " + server.url
                    + ": enter a token, made by the server's operator with `spry token create`");
        }
        String shown = name.substring(0, Math.min(100, name.length()));
        Enrolled identity = server.enrol(token, shown, Client.VERSION, store.makeKey());
        store.saveIdentity(identity);
        tell.tell(Event.of("enrolled", "enrolled as " + identity.device).with("device", identity.device));
        return identity;
    }

    /** A key in place of the secret of an earlier version; a server of an earlier version goes on by the secret. */
    private Enrolled withKey(Enrolled identity) {
        String key = store.makeKey();
        Enrolled changed;
        try {
            identify(identity);
            changed = server.sendKey(identity.device, key);
        } catch (UnauthorizedException known) { // the server may have the key already, and its answer was lost
            identify(new Enrolled(identity.device, ""));
            changed = server.sendKey(identity.device, key);
        } catch (UnreachableException error) {
            throw error;
        } catch (ServerException earlier) {
            return identity;
        }
        store.saveIdentity(changed);
        return changed;
    }
}
