package dev.spry.core.wire;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import dev.spry.core.Event;
import dev.spry.core.ServerException;
import dev.spry.core.SpryException;
import dev.spry.core.Tell;
import dev.spry.core.store.Disk;

/**
 * Static web servers that hold bundles and weights, in an order of this device's own: a fleet is spread over them.
 *
 * <p>A mirror is trusted with nothing: it is sent no secret, what it gives must have the hash that the server told, and
 * the size that the bundle's manifest says, and whatever else it does, the next is asked, in the end the server.
 */
final class Mirrors {
    /** For connecting, between two pieces of an answer, and until it may be called slow. */
    static final double SECONDS = 10;
    /** Bytes a second after that. */
    static final double SLOWEST = 16_384;

    private final List<String> left = new ArrayList<>();
    private final Tell tell;

    Mirrors(List<String> addresses, Tell tell) {
        this.tell = tell;
        for (String address : addresses) {
            try {
                left.add(Address.mirror(address));
            } catch (SpryException error) {
                tell.tell(Event.of("warning", error.getMessage()));
            }
        }
        Collections.shuffle(left);
    }

    /** The one to ask, which has given what it should up to now; null where none is left. */
    String next() {
        return left.isEmpty() ? null : left.get(0);
    }

    /** A small file whose hash is known, of so many bytes at most; null where no mirror gives it. */
    byte[] whole(Server server, String folder, String path, String sha256, int most) {
        for (String address = next(); address != null; address = next()) {
            try (Reply reply = server.mirrored(address, folder, path, 0)) {
                byte[] data = reply.all(most);
                if (Disk.hex(Disk.sha256().digest(data)).equals(sha256)) {
                    return data;
                }
                leaveOut(address, "it gives a damaged " + path);
            } catch (IOException | ServerException error) {
                leaveOut(address, String.valueOf(error.getMessage()));
            }
        }
        return null;
    }

    /** Ask this one for nothing more of the download. */
    void leaveOut(String address, String why) {
        left.remove(address);
        tell.tell(Event.of("warning", "the mirror " + address + " is left out: " + why));
    }
}
