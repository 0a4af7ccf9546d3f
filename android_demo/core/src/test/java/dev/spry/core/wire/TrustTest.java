package dev.spry.core.wire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.security.KeyStore;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;

import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

import dev.spry.core.ServerException;
import dev.spry.core.SpryException;
import dev.spry.core.UnreachableException;

/** Against a server with a certificate of its own, made by the JDK's keytool. */
@Timeout(60)
class TrustTest {
    private static final String PASSWORD = "of-this-test";
    @TempDir
    static File folder;
    private HttpsServer server;

    /** An authority, whose certificate is in ca.pem, and two of its servers: one whose day is over. */
    @BeforeAll
    static void certificates() throws Exception {
        keytool("-genkeypair", "-alias", "ca", "-dname", "CN=an authority", "-ext", "bc:c", "-startdate", "-30d",
                "-validity", "60", "-keyalg", "EC");
        keytool("-exportcert", "-alias", "ca", "-rfc", "-file", new File(folder, "ca.pem").getPath());
        for (String[] one : new String[][] {{"server", "-1H"}, {"late", "-10d"}}) {
            keytool("-genkeypair", "-alias", one[0], "-signer", "ca", "-dname", "CN=a server", "-ext", "san=ip:127.0.0.1",
                    "-startdate", one[1], "-validity", "1", "-keyalg", "EC");
        }
    }

    private static void keytool(String... arguments) throws Exception {
        List<String> command = new ArrayList<>(Arrays.asList(System.getProperty("java.home") + "/bin/keytool",
                "-J-XX:TieredStopAtLevel=1", "-keystore", store().getPath(), "-storepass", PASSWORD));
        command.addAll(Arrays.asList(arguments));
        File log = new File(folder, "keytool.log");
        int code = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log).start().waitFor();
        assertEquals(0, code, new String(Files.readAllBytes(log.toPath()), StandardCharsets.UTF_8));
    }

    private static File store() {
        return new File(folder, "keys.p12");
    }

    @AfterEach
    void close() {
        if (server != null) {
            server.stop(0);
        }
    }

    /** The address of a server with one of the certificates. */
    private String serving(String alias) throws Exception {
        KeyStore keys = KeyStore.getInstance("PKCS12");
        try (FileInputStream file = new FileInputStream(store())) {
            keys.load(file, PASSWORD.toCharArray());
        }
        for (String other : Collections.list(keys.aliases())) {
            if (!other.equals(alias)) {
                keys.deleteEntry(other);
            }
        }
        KeyManagerFactory managers = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        managers.init(keys, PASSWORD.toCharArray());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(managers.getKeyManagers(), null, null);
        server = HttpsServer.create(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0), 0);
        server.setHttpsConfigurator(new HttpsConfigurator(context));
        server.createContext("/v1/check-in", exchange -> {
            byte[] body = "{\"wait\": 4}".getBytes(StandardCharsets.US_ASCII);
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        return "https://127.0.0.1:" + server.getAddress().getPort();
    }

    private static CheckIn checkIn() {
        CheckIn message = new CheckIn(Collections.singletonList("executorch"));
        return message;
    }

    @Test
    void whoVouchesForAServerCanBeChosen() throws Exception {
        Server.Builder device = new Server.Builder(serving("server")).patience(0);
        ServerException stranger = assertThrows(ServerException.class, () -> device.open().checkIn(checkIn()));
        assertTrue(stranger.getMessage().contains("certificate that this device does not trust"), stranger.getMessage());
        assertFalse(stranger instanceof UnreachableException, "it would be tried again for ever");
        assertEquals(4, device.trust(Trust.in(new File(folder, "ca.pem"))).open().checkIn(checkIn()).wait);
    }

    @Test
    void aCertificateOfAnotherDayNamesTheDevicesClock() throws Exception {
        String url = serving("late");
        Server.Builder device = new Server.Builder(url).patience(0).trust(Trust.in(new File(folder, "ca.pem")));
        String message = assertThrows(ServerException.class, () -> device.open().checkIn(checkIn())).getMessage();
        assertTrue(message.contains("not valid on this device's date") && message.contains("set the device's clock"), message);
    }

    @Test
    void aFileWithoutCertificatesIsRefused() throws IOException {
        File empty = new File(folder, "empty.pem");
        for (String content : new String[] {"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}) {
            Files.write(empty.toPath(), content.getBytes(StandardCharsets.US_ASCII));
            assertTrue(assertThrows(SpryException.class, () -> Trust.in(empty)).getMessage().contains("give a PEM file"));
        }
        assertThrows(SpryException.class, () -> Trust.in(new File(folder, "none.pem")));
    }
}
